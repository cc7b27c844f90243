// Holds ICE servers, and prints the first one as JSON several times a second, until SIGINT.
//
//	node hold.mjs URL AHEAD TTL
//
// URL is that of POST /v1/ice-servers, AHEAD how wrong the clock is in ms, and TTL the lifetime of credentials in seconds.
import { setInterval } from 'node:timers/promises';
import { setAhead } from './clock.mjs';

const [url, ahead, ttl] = process.argv.slice(2);
setAhead(Number(ahead));
const { iceServers } = await import('../../../clients/typescript/dist/index.js');

const end = new AbortController();
process.once('SIGINT', () => end.abort());
const servers = await iceServers({ url, request: { ttl: Number(ttl) }, signal: end.signal });
try {
  for await (const _ of setInterval(250, null, { signal: end.signal })) {
    const { iceServers: held } = await servers.get();
    console.log(JSON.stringify(held[0]));
  }
} catch (error) {
  if (!end.signal.aborted) throw error;
}
