// Controls one headless Chromium with one page, for the test in this folder.
//
//   node drive.mjs CHROMIUM PROFILE URL [ARGUMENT...]
//
// Chromium starts without those of the arguments below that are named on the command line, and with the others that are.
//
// stdout has one JSON object per line: {"report": …} whenever window.__report of the page changes, {"problem": "…"} for
// errors on the page, {"gathered": …} after the command gather, {"done": "open"} when the page is loaded, and
// {"done": "…"} when a command is completed. stdin has one command per line: "gather ICE-SERVER" to gather relay candidates, or "stop" to end a call.
// The browser closes when stdin ends.
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';

const [executablePath, profile, url, ...named] = process.argv.slice(2);
const usual = [
  '--no-sandbox',
  '--allow-loopback-in-peer-connection',
  '--disable-features=WebRtcHideLocalIpsWithMdns',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
const look = 100; // ms between two looks at the report

const say = (object) => process.stdout.write(JSON.stringify(object) + '\n');

const context = await chromium.launchPersistentContext(profile, {
  executablePath,
  headless: true,
  viewport: { width: 1100, height: 900 },
  timeout: 0, // the test has its own
  args: [...usual.filter((arg) => !named.includes(arg)), ...named.filter((arg) => !usual.includes(arg))],
});
const page = context.pages()[0] ?? (await context.newPage());
page.on('console', (message) => message.type() === 'error' && say({ problem: message.text() }));
page.on('pageerror', (error) => say({ problem: String(error) }));
page.on('requestfailed', (request) => say({ problem: `${request.url()}: ${request.failure()?.errorText}` }));
await page.goto(url, { timeout: 0 });
say({ done: 'open' });

let last = '';
const timer = setInterval(async () => {
  try {
    const text = await page.evaluate(() => JSON.stringify(window.__report ?? null));
    if (text !== last) say({ report: JSON.parse((last = text)) });
  } catch (error) {
    say({ problem: `read report: ${error}` });
  }
}, look);

// gather runs in the page.
const gather = (server) =>
  new Promise((resolve, reject) => {
    const pc = new RTCPeerConnection({ iceServers: [server], iceTransportPolicy: 'relay' });
    const end = (found) => {
      pc.close();
      resolve(found);
    };
    pc.onicecandidate = ({ candidate }) => candidate?.candidate && end({ candidate: candidate.candidate });
    pc.onicecandidateerror = ({ url, errorCode, errorText }) => end({ url, errorCode, errorText });
    pc.createDataChannel('any');
    pc.setLocalDescription().catch(reject);
  });

for await (const line of createInterface({ input: process.stdin })) {
  const [, verb, rest] = /^(\S+) ?(.*)$/.exec(line);
  if (verb === 'gather') say({ gathered: await page.evaluate(gather, JSON.parse(rest)) });
  if (verb === 'stop') await page.evaluate(() => window.__stop());
  say({ done: line });
}
clearInterval(timer);
await context.close();
