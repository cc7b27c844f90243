// The test page. A run is: ICE servers → one call per TURN URL, relayed only → measurements → one sentence.
//
// URL parameters: run=1 starts at once; transport=udp|tcp|tls; gateway=NAMESPACE/NAME; keep=1 keeps the call up until window.__stop().
// window.__report is always the current state, as data.

const interval = 20; // ms between packets, as in a voice call
const size = 160; // bytes of a packet, as in a voice call
const backlog = 10 * size; // bytes that may have been waiting to be sent, 200 ms of a call; what comes on top is lost
const packets = 100; // of a test that is not kept running
const patience = 5000; // ms for any step; a firewall that drops says nothing, ever
const late = 1000; // ms after which a packet counts as lost; it may still arrive
const sampling = 250; // ms between two looks at the statistics
const shown = 240; // samples on the chart
const relayedOnly = 'Relayed only: no other way between this browser and the echo peer is open.';

const $ = (id) => document.getElementById(id);
const params = new URLSearchParams(location.search);

// A Fault is what went wrong, in words for a person: the cause, and what to do about it.
class Fault extends Error {
  constructor(cause, hint, code) {
    super(cause);
    Object.assign(this, { hint, code });
  }
}

window.__report = { verdict: 'idle', results: [] };
let stopped = false;
window.__stop = () => {
  stopped = true;
};

// ---- ICE servers

const answers = {
  400: 'Check the form: a gateway is named namespace/name.',
  401: 'Paste a token of the issuer that the service trusts. It may also have expired.',
  403: 'The token does not cover this gateway: its claim "stunner" lists those that it does.',
  404: 'Does the Gateway exist, and has it a public address? Its status says why not.',
  503: 'The service has not received a gateway config: is the operator running, and is --config its address?',
};

async function iceServers() {
  const headers = { 'Content-Type': 'application/json' };
  if ($('token').value) headers.Authorization = `Bearer ${$('token').value.trim()}`;
  const body = { transport: 'relay' };
  const [namespace, name] = $('gateway').value.trim().split('/');
  if (namespace) body.gateways = [{ namespace, name: name ?? '' }];
  let response;
  try {
    response = await fetch('../v1/ice-servers', { method: 'POST', headers, body: JSON.stringify(body), signal: AbortSignal.timeout(patience) });
  } catch {
    throw new Fault('The auth service does not answer', 'Is it still running, and reachable from here?');
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    const details = (answer.errors ?? []).map((e) => `${e.parameter} ${e.message}`).join('; ');
    throw new Fault(`The auth service says ${response.status}: ${details || answer.detail || response.statusText}`, answers[response.status] ?? '', response.status);
  }
  return answer;
}

// targets lists what to call: one entry per TURN URL that is wanted.
function targets(ice, wanted) {
  const all = ice.iceServers.flatMap((server) => server.urls.map((url) => ({ url, server, transport: transportOf(url) })));
  const turn = all.filter((t) => t.transport && (!wanted || t.transport === wanted));
  if (turn.length === 0) {
    throw new Fault(wanted ? `No gateway offers TURN over ${wanted.toUpperCase()}` : 'The gateways offer STUN only', 'Add a listener with that protocol to the Gateway.');
  }
  return turn;
}

function transportOf(url) {
  const [, secure, kind] = /^turn(s?):.*\?transport=(udp|tcp)$/.exec(url) ?? [];
  if (!kind) return '';
  return { udp: 'udp', tcp: 'tcp', sudp: 'dtls', stcp: 'tls' }[secure + kind];
}

// ---- one call

async function call(target, card) {
  const result = { transport: target.transport, url: target.url, verdict: 'running', sent: 0, received: 0, lost: 0, maxGapMs: 0, rttMs: null, rttP95Ms: null, bytesSent: 0, bytesReceived: 0, pair: null };
  window.__report.results.push(result);
  if (window.__report.results.length === 1) Object.assign(window.__report, result, { results: window.__report.results });
  const { username, credential } = target.server;
  progress(result);
  const pc = new RTCPeerConnection({ iceServers: [{ urls: [target.url], username, credential }], iceTransportPolicy: 'relay' });
  try {
    if (target.transport === 'dtls') throw new Fault('This browser does not speak TURN over DTLS', 'Offer UDP, TCP or TLS to browsers.');
    const channel = pc.createDataChannel('echo', { ordered: false, maxRetransmits: 0 });
    channel.binaryType = 'arraybuffer';
    await gather(pc, target);
    await pc.setRemoteDescription({ type: 'answer', sdp: await echoPeer(pc.localDescription.sdp) });
    await opened(pc, channel);
    await measure(pc, channel, result, card);
    result.verdict = result.received > 0 ? 'ok' : 'failed';
    if (result.verdict === 'failed') throw new Fault('Connected, but no packet came back', 'Is the UDPRoute still there?');
  } catch (error) {
    result.verdict = 'failed';
    result.error = { cause: error.message, hint: error.hint ?? '', code: error.code };
  } finally {
    pc.close();
  }
  publish(result, card);
  return result;
}

// gather waits for the relay candidate. Servers that refuse say so at once; those that cannot be reached over UDP say nothing.
function gather(pc, target) {
  return new Promise((resolve, reject) => {
    let refusal;
    let found = false;
    const timer = setTimeout(() => (found ? resolve() : reject(gatherFault(refusal, target))), patience);
    const finish = () => {
      clearTimeout(timer);
      found ? resolve() : reject(gatherFault(refusal, target));
    };
    pc.onicecandidate = ({ candidate }) => {
      if (candidate === null) finish();
      else if (candidate.candidate.includes(' typ relay')) found = true;
    };
    pc.onicecandidateerror = (event) => (refusal = event);
    pc.createOffer().then((offer) => pc.setLocalDescription(offer)).catch(reject);
  });
}

function gatherFault(refusal, { transport }) {
  const port = 'Is the listener there, does the Service forward its port, does a firewall let it pass?';
  if (!refusal || (refusal.errorCode === 701 && transport === 'udp')) {
    return new Fault('No answer within 5 s', 'Firewall, wrong port, or a Service without endpoints.', refusal?.errorCode);
  }
  if (refusal.errorCode === 701) {
    return new Fault('Cannot connect (701)', transport === 'tls' ? `${port} The certificate must also fit the host name.` : port, 701);
  }
  const credentials = [400, 401, 438, 441].includes(refusal.errorCode);
  return new Fault(
    `The gateway refuses: ${refusal.errorCode} ${refusal.errorText}`,
    credentials ? 'The credentials are not those of the gateway: has its Secret just changed, are both clocks right?' : 'The log of stunnerd says why.',
    refusal.errorCode,
  );
}

async function echoPeer(sdp) {
  const headers = { 'Content-Type': 'application/sdp' };
  if ($('token').value) headers.Authorization = `Bearer ${$('token').value.trim()}`;
  let response;
  try {
    response = await fetch('echo', { method: 'POST', headers, body: sdp, signal: AbortSignal.timeout(2 * patience) });
  } catch {
    throw new Fault('The echo peer does not answer', 'Is it running?');
  }
  if (!response.ok) {
    const hint = { 401: answers[401], 405: 'The service was started without --demo-echo.' }[response.status];
    throw new Fault(`No echo peer to call (${response.status})`, hint ?? 'Is it running, and does --demo-echo name it?', response.status);
  }
  return response.text();
}

function opened(pc, channel) {
  return new Promise((resolve, reject) => {
    const fault = () => reject(new Fault('The gateway answers, but the echo peer is out of reach', 'Does a UDPRoute of this Gateway name the echo peer, with its port?'));
    const timer = setTimeout(fault, 2 * patience);
    channel.onopen = () => (clearTimeout(timer), resolve());
    pc.oniceconnectionstatechange = () => pc.iceConnectionState === 'failed' && (clearTimeout(timer), fault());
  });
}

// measure sends numbered packets at a steady pace and counts what comes back.
async function measure(pc, channel, result, card) {
  const flight = new Map(); // number → when it was sent
  const missed = new Set(); // numbers that count as lost
  const rtts = [];
  const samples = [];
  const packet = new DataView(new ArrayBuffer(size));
  const keep = $('keep').checked;
  const began = performance.now();
  let last = began;

  channel.onmessage = ({ data }) => {
    const now = performance.now();
    const number = new DataView(data).getUint32(0);
    const sentAt = flight.get(number);
    if (sentAt === undefined) return; // a duplicate
    flight.delete(number);
    if (missed.delete(number)) result.lost--;
    result.received++;
    rtts.push(now - sentAt);
    if (rtts.length > 3000) rtts.shift();
    result.maxGapMs = Math.max(result.maxGapMs, round(now - last));
    last = now;
  };

  const send = () => {
    const now = performance.now();
    const held = channel.bufferedAmount;
    // Timers may be late: what should have been sent by now is sent now.
    for (let due = Math.floor((now - began) / interval); result.sent <= due && channel.readyState === 'open'; result.sent++) {
      if (!keep && result.sent >= packets) break;
      // The transport below holds packets back when nothing is acknowledged, and would deliver them later: media would not. What was sent
      // just now does not count: many at once mean a late timer.
      if (held > backlog) {
        result.lost++;
        continue;
      }
      packet.setUint32(0, result.sent);
      flight.set(result.sent, now);
      channel.send(packet.buffer);
    }
    for (const [number, sentAt] of flight) {
      if (now - sentAt < late) break; // the rest is younger
      if (now - sentAt > 10 * late) flight.delete(number);
      if (!missed.has(number)) {
        missed.add(number);
        result.lost++;
      }
    }
    result.maxGapMs = Math.max(result.maxGapMs, flight.size > 0 ? round(now - last - interval) : 0);
  };

  const look = async () => {
    await readStats(pc, result, samples, performance.now() - began);
    Object.assign(result, { rttMs: quantile(rtts, 0.5), rttP95Ms: quantile(rtts, 0.95) });
    publish(result, card, samples);
    progress(result, performance.now() - last);
  };

  const finished = () => stopped || channel.readyState !== 'open' || (!keep && result.sent >= packets && (flight.size === 0 || performance.now() - began > packets * interval + late));
  await new Promise((resolve) => {
    const looking = setInterval(look, sampling);
    const sending = setInterval(() => {
      send();
      if (!finished()) return;
      clearInterval(sending);
      clearInterval(looking);
      resolve();
    }, interval / 2);
  });
  const alive = channel.readyState === 'open';
  await look();
  if (!alive) throw new Fault('The call broke off', 'The gateway or the echo peer closed it: their logs say why.');
}

async function readStats(pc, result, samples, at) {
  const stats = await pc.getStats();
  const all = [...stats.values()];
  const transport = all.find((s) => s.type === 'transport' && s.selectedCandidatePairId);
  const pair = transport ? stats.get(transport.selectedCandidatePairId) : all.find((s) => s.type === 'candidate-pair' && (s.selected || (s.nominated && s.state === 'succeeded')));
  if (!pair) return;
  result.pair = { local: candidate(stats.get(pair.localCandidateId)), remote: candidate(stats.get(pair.remoteCandidateId)) };
  result.bytesSent = pair.bytesSent ?? 0;
  result.bytesReceived = pair.bytesReceived ?? 0;
  samples.push({ at, sent: result.bytesSent, received: result.bytesReceived });
  if (samples.length > shown) samples.shift();
}

function candidate(c) {
  if (!c) return null;
  const { candidateType, relayProtocol, protocol, address, ip, port } = c;
  return { candidateType, relayProtocol, protocol, address: address ?? ip, port };
}

const round = (ms) => Math.round(ms * 10) / 10;

function quantile(values, q) {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return round(sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))]);
}

// ---- what a person sees

const field = (card, name) => card.querySelector(`[data-field="${name}"]`);

function newCard(target) {
  const card = $('call').content.firstElementChild.cloneNode(true);
  field(card, 'title').textContent = `TURN over ${target.transport.toUpperCase()}`;
  field(card, 'url').textContent = target.url;
  $('calls').append(card);
  return card;
}

// publish brings a result to window.__report and to its card.
function publish(result, card, samples) {
  const report = window.__report;
  if (report.results[0] === result) {
    const { verdict, ...figures } = result;
    Object.assign(report, figures);
  }
  card.dataset.state = result.verdict;
  if (result.received > 0) card.dataset.measured = '';
  field(card, 'badge').textContent = { running: 'calling', ok: 'works', failed: 'fails' }[result.verdict];
  setFigure(card, 'median', result.rttMs, 'ms');
  setFigure(card, 'p95', result.rttP95Ms, 'ms');
  setFigure(card, 'lost', result.sent ? percent(result.lost, result.sent) : null, '%');
  setFigure(card, 'gap', result.received ? Math.round(result.maxGapMs) : null, 'ms');
  field(card, 'bytes').textContent = `${result.received}/${result.sent} packets · ${kilobytes(result.bytesSent)} ↑ ${kilobytes(result.bytesReceived)} ↓`;
  if (result.pair) {
    field(card, 'local').textContent = describe(result.pair.local);
    field(card, 'remote').textContent = describe(result.pair.remote);
  }
  for (const part of ['cause', 'hint']) {
    field(card, part).textContent = result.error?.[part] ?? '';
    field(card, part).hidden = !result.error?.[part];
  }
  if (samples) draw(card, samples);
}

function setFigure(card, name, value, unit) {
  if (value === null) return;
  const small = document.createElement('small');
  small.textContent = unit;
  field(card, name).replaceChildren(String(value), small);
}

const percent = (part, whole) => round((100 * part) / whole);
const kilobytes = (bytes) => `${(bytes / 1000).toFixed(bytes < 100000 ? 1 : 0)} kB`;
const describe = (c) => (c ? `${c.candidateType}${c.relayProtocol ? ` over ${c.relayProtocol}` : ''} · ${c.address ?? 'hidden'}:${c.port}` : '–');

// draw shows bytes per second: what goes out as a line on a shade, what comes back as a dashed line above it. The upper line of the
// grid is the number beside it.
function draw(card, samples) {
  if (samples.length < 3) return;
  const rates = samples.slice(1).map((s, i) => {
    const seconds = (s.at - samples[i].at) / 1000 || 1;
    return { sent: (s.sent - samples[i].sent) / seconds, received: (s.received - samples[i].received) / seconds };
  });
  const top = roundUp(Math.max(1000, ...rates.flatMap((r) => [r.sent, r.received])));
  const x = (i) => ((400 * i) / (rates.length - 1)).toFixed(1);
  const y = (v) => (90 - (88 * v) / top).toFixed(1);
  const line = (kind) => rates.map((r, i) => `${x(i)},${y(r[kind])}`).join(' ');
  field(card, 'scale').textContent = `${top / 1000} kB/s`;
  card.querySelector('svg').replaceChildren(
    shape('line', { class: 'grid', x1: 0, x2: 400, y1: 90, y2: 90 }),
    shape('line', { class: 'grid', x1: 0, x2: 400, y1: y(top), y2: y(top) }),
    shape('polygon', { class: 'area', points: `0,90 ${line('sent')} 400,90` }),
    shape('polyline', { class: 'sent', points: line('sent') }),
    shape('polyline', { class: 'received', points: line('received') }),
  );
}

// roundUp gives the next of 1, 2, 5, 10, 20, 50, …
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => step * power >= value);
}

function shape(name, attributes) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function say(state, sentence, explain) {
  $('verdict').dataset.state = state;
  $('verdict').ariaBusy = state === 'running'; // a screen reader waits for the outcome
  $('sentence').textContent = sentence;
  $('explain').textContent = explain ?? '';
}

// progress says how a call is going; silence is how long nothing has come back, in ms.
function progress({ transport, lost, rttMs }, silence = 0) {
  const figures = rttMs === null ? '…' : silence > late ? `: nothing back for ${Math.floor(silence / 1000)} s` : `: ${lost} lost, ${rttMs} ms`;
  say('running', `Calling over ${transport.toUpperCase()}${figures}`, relayedOnly);
}

// conclude puts all results into one sentence, and each reason to fail into another.
function conclude(results) {
  const name = (r) => r.transport.toUpperCase();
  const and = (words) => [words.slice(0, -1).join(', '), words.at(-1)].filter(Boolean).join(' and ');
  const good = results.filter((r) => r.verdict === 'ok').map((r) => `${name(r)} (${r.rttMs} ms${r.lost > 0 ? `, ${percent(r.lost, r.sent)} % lost` : ''})`);
  const bad = results.filter((r) => r.verdict !== 'ok');
  const why = (r) => `${r.error.cause}. ${r.error.hint}`;
  const whom = (reason) => and(bad.filter((r) => why(r) === reason).map(name));
  return {
    verdict: good.length > 0 ? 'ok' : 'failed',
    state: good.length === 0 ? 'failed' : bad.length > 0 ? 'partly' : 'ok',
    sentence: good.length > 0 ? `Relay works over ${and(good)}` : `No relay over ${and(bad.map(name))}`,
    explain: [...new Set(bad.map(why))].map((reason) => `${whom(reason)}: ${reason}`).join(' '),
  };
}

let countdown;
function showServers(ice) {
  $('servers').hidden = false;
  $('json').textContent = JSON.stringify(ice, null, 2);
  clearInterval(countdown);
  const tick = () => {
    const left = Math.round((Date.parse(ice.expiresAt) - Date.now()) / 1000);
    const parts = [Math.floor(left / 3600), Math.floor(left / 60) % 60, left % 60].map((n) => String(n).padStart(2, '0'));
    $('expiry').textContent = !ice.expiresAt ? 'do not expire' : left > 0 ? `expire in ${parts.join(':')}` : 'have expired';
  };
  tick();
  countdown = setInterval(tick, 1000);
}

function markdown() {
  const { sentence, results } = window.__report;
  const rows = results.map((r) => `| ${r.transport} | ${r.verdict} | ${r.rttMs ?? ''} | ${r.rttP95Ms ?? ''} | ${r.lost}/${r.sent} | ${r.maxGapMs} | ${describe(r.pair?.local)} | ${r.error ? r.error.cause : ''} |`);
  return [`**${sentence}**`, '', '| transport | verdict | RTT ms | p95 ms | lost | gap ms | local | cause |', '|---|---|---|---|---|---|---|---|', ...rows, '',
    `${new Date().toISOString()} · ${location.origin} · ${navigator.userAgent}`].join('\n');
}

// copy falls back to a selection: the clipboard needs a secure origin, and this page is often opened without TLS.
async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement('textarea');
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  const label = button.textContent;
  button.textContent = 'Copied';
  setTimeout(() => (button.textContent = label), 1200);
}

// ---- a run

async function run() {
  stopped = false;
  window.__report = { verdict: 'running', results: [] };
  $('calls').replaceChildren();
  $('run').disabled = true;
  $('stop').hidden = !$('keep').checked;
  say('running', 'Testing…', relayedOnly);
  try {
    const ice = await iceServers();
    showServers(ice);
    for (const target of targets(ice, $('transport').value)) {
      if (stopped) break;
      await call(target, newCard(target));
    }
    const { verdict, state, sentence, explain } = conclude(window.__report.results);
    Object.assign(window.__report, { verdict, sentence });
    say(state, sentence, explain);
  } catch (error) {
    Object.assign(window.__report, { verdict: 'failed', sentence: error.message, error: { cause: error.message, hint: error.hint ?? '', code: error.code } });
    say('failed', error.message, error.hint);
  }
  $('run').disabled = false;
  $('stop').hidden = true;
  $('copy-report').disabled = false;
}

$('gateway').value = params.get('gateway') ?? '';
$('transport').value = ['udp', 'tcp', 'tls'].includes(params.get('transport')) ? params.get('transport') : '';
$('keep').checked = params.get('keep') === '1';
$('form').addEventListener('submit', (event) => {
  event.preventDefault();
  run();
});
$('stop').addEventListener('click', window.__stop);
$('copy-report').addEventListener('click', (event) => copy(event.currentTarget, markdown()));
$('copy-servers').addEventListener('click', (event) => copy(event.currentTarget, $('json').textContent));
if (params.get('run') === '1') run();
