// The test page. A run is: ICE servers → each URL tried alone → measurements → one sentence. A TURN URL is tried by a call that may use
// nothing else; a STUN URL must tell the browser its public address.
//
// URL parameters: run=1 starts at once; transport=udp|tcp|tls; gateway=NAMESPACE/NAME; timeout=SECONDS of each step; keep=1 keeps the call up
// until window.__stop(). window.__report is always the current state, as data.
import { iceServers, IceServersError } from './ice-servers/index.js';

const interval = 20; // ms between packets, as in a voice call
const size = 160; // bytes of a packet, as in a voice call
const backlog = 10 * size; // bytes that may have been waiting to be sent, 200 ms of a call; what comes on top is lost
const packets = 100; // of a test that is not kept running
const late = 1000; // ms after which a packet counts as lost; it may still arrive
const sampling = 250; // ms between two looks at the statistics
const shown = 240; // samples on the chart
const relayedOnly = 'Relayed only: no other way between this browser and the echo peer is open.';

const $ = (id) => document.getElementById(id);
const params = new URLSearchParams(location.search);
// A firewall that drops says nothing, ever, and browsers wait for minutes. So each step has a time-out of its own, in ms.
const patience = 1000 * Math.min(60, Math.max(1, Number(params.get('timeout')) || 5));

// A Fault is what went wrong, in words for a person: the cause, and what to do about it; and for programs: a reason, and the code of the event
// icecandidateerror or the HTTP status.
class Fault extends Error {
  constructor(reason, cause, hint, code) {
    super(cause);
    Object.assign(this, { reason, hint, code });
  }
}

const described = (error) => ({ reason: error.reason ?? 'internal', cause: error.message, hint: error.hint ?? '', code: error.code });

window.__report = { verdict: 'idle', results: [] };
let stopped = false;
window.__stop = () => {
  stopped = true;
};

// ---- ICE servers

const answers = {
  0: 'Is the auth service running, and reachable from here?',
  400: 'Check the form: a gateway is named namespace/name.',
  401: 'Paste a token of the issuer that the service trusts. It may also have expired.',
  403: 'The token does not cover this gateway: its claim "stunner" lists those that it does.',
  404: 'Does the Gateway exist, and has it a public address? Its status says why not.',
  429: 'Wait, or raise the rate limit of the auth service.',
  503: 'The service has not received a gateway config: is the operator running, and is --config its address?',
};

// token returns the bearer token, if there is one.
const token = () => $('token').value.trim();

// open requests ICE servers, and renews them as long as the run lasts.
async function open() {
  const request = { transport: 'relay' };
  const [namespace, name] = $('gateway').value.trim().split('/');
  if (namespace) request.gateways = [{ namespace, name: name ?? '' }];
  try {
    return await iceServers({
      url: '../v1/ice-servers',
      request,
      timeout: patience,
      ...(token() ? { token: token() } : {}),
      onRenewal: showServers,
      onError: (error) => error.temporary && say('running', 'Asking for ICE servers again…', serviceFault(error).message),
    });
  } catch (error) {
    throw error instanceof IceServersError ? serviceFault(error) : error;
  }
}

function serviceFault({ status, reason, detail }) {
  const cause = status ? `The auth service says ${status}: ${detail}` : reason === 'unreachable' || reason === 'timeout' ? 'The auth service does not answer' : detail;
  return new Fault(reason, cause, answers[status] ?? '', status || undefined);
}

// targets lists what to try: one entry per URL that is wanted, those of TURN first.
function targets(ice, wanted) {
  const all = ice.iceServers.flatMap((server) => server.urls.map((url) => ({ url, server, transport: transportOf(url) })));
  const found = all
    .filter((t) => t.transport && (!wanted || t.transport === wanted))
    .sort((a, b) => (a.transport === 'stun') - (b.transport === 'stun'));
  if (found.length === 0) {
    throw new Fault('no_url', `No gateway offers TURN over ${wanted ? wanted.toUpperCase() : 'a known transport'}`, 'Add a listener with that protocol to the Gateway.');
  }
  return found;
}

function transportOf(url) {
  if (/^stuns?:/.test(url)) return 'stun';
  const [, secure, kind = 'udp'] = /^turn(s?):[^?]*(?:\?transport=(udp|tcp))?$/.exec(url) ?? [];
  if (secure === undefined) return '';
  return { udp: 'udp', tcp: 'tcp', sudp: 'dtls', stcp: 'tls' }[secure + kind];
}

// ---- one URL

async function attempt(target, card, servers) {
  const result = {
    transport: target.transport, url: target.url, verdict: 'running', steps: {}, sent: 0, received: 0, lost: 0, maxGapMs: 0, rttMs: null, rttP95Ms: null, jitterMs: null,
    bytesSent: 0, bytesReceived: 0, publicAddress: null, pair: null,
  };
  window.__report.results.push(result);
  if (window.__report.results.length === 1) Object.assign(window.__report, result, { results: window.__report.results });
  progress(result);
  const { username, credential } = target.server;
  const stun = target.transport === 'stun';
  const server = stun ? { urls: [target.url] } : { urls: [target.url], username, credential };
  const pc = new RTCPeerConnection({ iceServers: [server], iceTransportPolicy: stun ? 'all' : 'relay' });
  try {
    await (stun ? ask(pc, target, result, card) : call(pc, target, result, card, servers));
    result.verdict = 'ok';
  } catch (error) {
    result.verdict = 'failed';
    result.error = described(error);
  } finally {
    pc.close();
  }
  publish(result, card);
  return result;
}

// step measures how long a part of an attempt takes, and shows it.
async function step(result, card, name, doing) {
  const began = performance.now();
  result.steps[name] = null; // it runs
  publish(result, card);
  const value = await doing;
  result.steps[name] = round(performance.now() - began);
  publish(result, card);
  return value;
}

async function ask(pc, target, result, card) {
  pc.createDataChannel('address');
  const { reflexive } = await step(result, card, 'address', gather(pc, target));
  result.publicAddress = reflexive ?? null;
}

async function call(pc, target, result, card, servers) {
  if (target.transport === 'dtls') throw new Fault('not_supported', 'Browsers do not speak TURN over DTLS', 'Offer UDP, TCP or TLS to browsers.');
  const channel = pc.createDataChannel('echo', { ordered: false, maxRetransmits: 0 });
  channel.binaryType = 'arraybuffer';
  await step(result, card, 'relay', gather(pc, target));
  await step(result, card, 'echo', connect(pc, channel));
  // The echo peer answers one offer, so that ICE cannot be restarted.
  const detach = servers.attach(pc, { restart: false });
  try {
    await step(result, card, 'media', measure(pc, channel, result, card));
  } finally {
    detach();
  }
  if (result.received === 0) throw new Fault('no_media', 'Connected, but no packet came back', 'Is the UDPRoute still there?');
}

// gather waits for the candidates of one server. Servers that refuse say so at once; those that cannot be reached over UDP say nothing.
function gather(pc, target) {
  return new Promise((resolve, reject) => {
    const found = {};
    let refusal;
    const finish = () => {
      clearTimeout(timer);
      // A STUN server that sees the address of an interface gives no candidate of its own.
      if (found.relay || found.reflexive || (target.transport === 'stun' && found.host && !refusal && pc.iceGatheringState === 'complete')) resolve(found);
      else gatherFault(refusal, target, found).then(reject);
    };
    const timer = setTimeout(finish, patience);
    pc.onicecandidate = ({ candidate }) => {
      if (candidate === null) return finish();
      const [, kind] = / typ (\w+)/.exec(candidate.candidate) ?? [];
      if (kind === 'host') found.host = true;
      if (kind === 'relay') found.relay = true;
      if (kind === 'srflx') found.reflexive = `${candidate.address}:${candidate.port}`;
    };
    pc.onicecandidateerror = (event) => (refusal = event);
    pc.createOffer().then((offer) => pc.setLocalDescription(offer)).catch(reject);
  });
}

// refusals are the codes of STUN and TURN (RFC 8489 section 14.8, RFC 8656 section 19): what they mean here, and what to do.
const credentials = 'The credentials are not those of the gateway: has its Secret just changed, are the clocks of auth service and gateway right?';
const refusals = {
  400: ['cannot read the request', 'Is a STUNner gateway at this address? A proxy on the way may change the traffic.'],
  401: ['refuses the credential', credentials],
  403: ['forbids the request', 'Does a UDPRoute of this Gateway name the echo peer, and does the credential cover the route?'],
  420: ['does not know an attribute of the request', 'Is a STUNner gateway at this address?'],
  437: ['has another session of this address', 'Run the test again. If that does not help: does the load balancer keep a client on one pod?'],
  438: ['says that its nonce is stale', 'Does the load balancer keep a client on one pod?'],
  441: ['refuses the credential for this session', credentials],
  442: ['does not relay this transport', 'Gateways relay UDP to the media server: correct the client.'],
  486: ['has no more allocations for this user', 'End other calls, or raise userQuota of the GatewayConfig.'],
  500: ['had an error', 'The log of stunnerd says why.'],
  508: ['is full, or ends', 'Add replicas of the dataplane, or wait for the new pod.'],
};

const way = 'Is the listener there, does the Service forward its port, does a firewall let it pass?';
const noWay = {
  udp: ['No answer over UDP', `${way} Many networks block UDP: then TCP or TLS on port 443 is the way.`],
  stun: ['No answer over UDP', way],
  tcp: ['Cannot connect over TCP', way],
  tls: ['Cannot connect over TLS', `${way} The browser must also trust the certificate, which must fit the host name.`],
};

async function gatherFault(refusal, { transport }, found) {
  const code = refusal?.errorCode;
  if (code && code !== 701) {
    const [what, hint] = refusals[code] ?? [`refuses: ${refusal.errorText}`, 'The log of stunnerd says why.'];
    return new Fault('refused', `The gateway ${what} (${code})`, hint, code);
  }
  if (!found.host && !(await hasNetwork())) {
    return new Fault('no_network', 'This browser has no network that WebRTC can use',
      'That is no firewall: there is no interface but loopback. Connect to a network, or start Chromium with --allow-loopback-in-peer-connection.');
  }
  const [cause, hint] = noWay[transport];
  return new Fault('no_answer', code ? `${cause} (701)` : `${cause} within ${patience / 1000} s`, hint, code);
}

// hasNetwork reports whether the browser finds an interface that it can use. Without one it finds no candidates, and that is no error:
// Chromium then ends the search at once, or never.
function hasNetwork() {
  const pc = new RTCPeerConnection();
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(false), Math.max(patience, 5000));
    pc.onicecandidate = ({ candidate }) => {
      clearTimeout(timer);
      resolve(candidate !== null);
    };
    pc.createDataChannel('any');
    pc.setLocalDescription();
  }).finally(() => pc.close());
}

async function connect(pc, channel) {
  await pc.setRemoteDescription({ type: 'answer', sdp: await echoPeer(pc.localDescription.sdp) });
  await opened(pc, channel);
}

async function echoPeer(sdp) {
  const headers = { 'Content-Type': 'application/sdp' };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  let response;
  try {
    response = await fetch('echo', { method: 'POST', headers, body: sdp, signal: AbortSignal.timeout(2 * patience) });
  } catch {
    throw new Fault('no_echo', 'The echo peer does not answer', 'Is it running?');
  }
  if (!response.ok) {
    const hint = { 401: answers[401], 405: 'The service was started without --demo-echo.' }[response.status];
    throw new Fault('no_echo', `No echo peer to call (${response.status})`, hint ?? 'Is it running, and does --demo-echo name it?', response.status);
  }
  return response.text();
}

function opened(pc, channel) {
  return new Promise((resolve, reject) => {
    const fault = () => reject(new Fault('no_route', 'The gateway answers, but the echo peer is out of reach', 'Does a UDPRoute of this Gateway name the echo peer, with its port?'));
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
  let jitter = 0; // RFC 3550 section 6.4.1, of both ways together
  let before; // the round-trip time of the last packet
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
    if (before !== undefined) jitter += (Math.abs(now - sentAt - before) - jitter) / 16;
    before = now - sentAt;
    rtts.push(before);
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
    Object.assign(result, { rttMs: quantile(rtts, 0.5), rttP95Ms: quantile(rtts, 0.95), jitterMs: rtts.length > 1 ? round(jitter) : null });
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
  if (!alive) throw new Fault('broken', 'The call broke off', 'The gateway or the echo peer closed it: their logs say why.');
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
  field(card, 'title').textContent = titleOf(target);
  card.dataset.transport = target.transport;
  field(card, 'url').textContent = target.url;
  $('calls').append(card);
  return card;
}

const titleOf = ({ transport }) => (transport === 'stun' ? 'STUN' : `TURN over ${transport.toUpperCase()}`);

// The steps of an attempt, in words.
const steps = { address: 'public address', relay: 'relay address', echo: 'echo peer', media: 'media' };

function showSteps(card, result) {
  const names = result.transport === 'stun' ? ['address'] : ['relay', 'echo', 'media'];
  field(card, 'steps').replaceChildren(...names.map((name) => {
    const item = document.createElement('li');
    const took = result.steps[name];
    item.dataset.state = took === undefined ? 'waiting' : took !== null ? 'ok' : result.verdict === 'running' ? 'running' : 'failed';
    const time = document.createElement('small');
    time.textContent = took === undefined || took === null ? '' : took < 1000 ? `${Math.round(took)} ms` : `${round(took / 1000)} s`;
    item.append(steps[name], time);
    return item;
  }));
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
  field(card, 'badge').textContent = { running: result.transport === 'stun' ? 'asking' : 'calling', ok: 'works', failed: 'fails' }[result.verdict];
  showSteps(card, result);
  setFigure(card, 'median', result.rttMs, 'ms');
  setFigure(card, 'p95', result.rttP95Ms, 'ms');
  setFigure(card, 'jitter', result.jitterMs, 'ms');
  setFigure(card, 'lost', result.sent ? percent(result.lost, result.sent) : null, '%');
  setFigure(card, 'gap', result.received ? Math.round(result.maxGapMs) : null, 'ms');
  field(card, 'bytes').textContent = `${result.received}/${result.sent} packets · ${kilobytes(result.bytesSent)} ↑ ${kilobytes(result.bytesReceived)} ↓`;
  if (result.pair) {
    field(card, 'local').textContent = describe(result.pair.local);
    field(card, 'remote').textContent = describe(result.pair.remote);
  }
  if (result.transport === 'stun' && result.verdict === 'ok') {
    field(card, 'note').hidden = false;
    field(card, 'note').textContent = result.publicAddress ? `The gateway sees this browser at ${result.publicAddress}.` : 'The gateway sees the address of this machine: no NAT is between.';
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
  if (transport === 'stun') return say('running', 'Asking for the public address…');
  const figures = rttMs === null ? '…' : silence > late ? `: nothing back for ${Math.floor(silence / 1000)} s` : `: ${lost} lost, ${rttMs} ms`;
  say('running', `Calling over ${transport.toUpperCase()}${figures}`, relayedOnly);
}

// conclude puts all results into one sentence, and each reason to fail into another.
function conclude(results) {
  const name = (r) => r.transport.toUpperCase();
  const and = (words) => [words.slice(0, -1).join(', '), words.at(-1)].filter(Boolean).join(' and ');
  const turn = results.filter((r) => r.transport !== 'stun');
  const good = results.filter((r) => r.verdict === 'ok');
  const bad = results.filter((r) => r.verdict !== 'ok');
  const relays = turn.filter((r) => r.verdict === 'ok').map((r) => `${name(r)} (${r.rttMs} ms${r.lost > 0 ? `, ${percent(r.lost, r.sent)} % lost` : ''})`);
  const why = (r) => `${r.error.cause}. ${r.error.hint}`;
  const whom = (reason) => and(bad.filter((r) => why(r) === reason).map(name));
  const reasons = [...new Set(bad.map(why))];
  const works = turn.length === 0 ? good.length > 0 : relays.length > 0;
  const sentence = turn.length === 0 ? (works ? 'STUN works, and the gateways relay nothing' : 'No answer over STUN') : works ? `Relay works over ${and(relays)}` : `No relay over ${and(turn.map(name))}`;
  return {
    verdict: works ? 'ok' : 'failed',
    state: !works ? 'failed' : bad.length > 0 ? 'partly' : 'ok',
    sentence,
    explain: reasons.length < 3 ? reasons.map((reason) => `${whom(reason)}: ${reason}`).join(' ') : `${bad.length} of ${results.length} URLs fail: below is why, and what to do.`,
  };
}

let countdown;
let current; // the answer with its credentials, to copy

// showServers shows an answer, without its passwords: pages are shared and photographed.
function showServers(ice) {
  current = ice;
  const until = performance.now() + 1000 * ice.ttl;
  $('servers').hidden = false;
  $('json').textContent = JSON.stringify(ice, (key, value) => (key === 'credential' ? '••••••••' : value), 2);
  clearInterval(countdown);
  const tick = () => {
    const left = Math.round((until - performance.now()) / 1000);
    const parts = [Math.floor(left / 3600), Math.floor(left / 60) % 60, left % 60].map((n) => String(n).padStart(2, '0'));
    $('expiry').textContent = ice.ttl === undefined ? 'do not expire' : left > 0 ? `expire in ${parts.join(':')}` : 'have expired';
  };
  tick();
  countdown = setInterval(tick, 1000);
}

function markdown() {
  const { sentence, results } = window.__report;
  const rows = results.map((r) => `| ${r.transport} | ${r.verdict} | ${r.rttMs ?? ''} | ${r.rttP95Ms ?? ''} | ${r.jitterMs ?? ''} | ${r.lost}/${r.sent} | ${r.maxGapMs} | ${describe(r.pair?.local)} | ${r.error ? r.error.cause : r.publicAddress ?? ''} |`);
  return [`**${sentence}**`, '', '| transport | verdict | RTT ms | p95 ms | jitter ms | lost | gap ms | local | cause |', '|---|---|---|---|---|---|---|---|---|', ...rows, '',
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
  say('running', 'Asking for ICE servers…', '');
  let servers;
  try {
    servers = await open();
    const ice = await servers.get();
    showServers(ice);
    const all = targets(ice, $('transport').value);
    const cards = all.map(newCard);
    for (const [i, target] of all.entries()) {
      if (stopped) break;
      await attempt(target, cards[i], servers);
    }
    const { verdict, state, sentence, explain } = conclude(window.__report.results);
    Object.assign(window.__report, { verdict, sentence });
    say(state, sentence, explain);
  } catch (error) {
    Object.assign(window.__report, { verdict: 'failed', sentence: error.message, error: described(error) });
    say('failed', error.message, error.hint);
  }
  servers?.close();
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
$('copy-servers').addEventListener('click', (event) => copy(event.currentTarget, JSON.stringify(current, null, 2)));
if (params.get('run') === '1') run();
