// The renewal in virtual time.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { IceServersError } from '../dist/index.js';
import { start } from '../dist/renewal.js';
import { expiryOf, World } from './virtual.mjs';

const url = 'https://auth.example.org/v1/ice-servers';

/** Starts a renewal and waits for its first servers. */
async function started(world, options = {}) {
  const starting = start({ url, ...options }, world.environment);
  await world.advance(0);
  return starting;
}

/** A peer connection that notes what it is told. */
class Connection {
  signalingState = 'stable';
  configuration = { bundlePolicy: 'max-bundle', iceTransportPolicy: 'relay', iceServers: [] };
  restarts = 0;
  getConfiguration() {
    return this.configuration;
  }
  setConfiguration(configuration) {
    this.configuration = configuration;
  }
  restartIce() {
    this.restarts++;
  }
}

test('a request is that of the contract', async () => {
  const world = new World();
  const servers = await started(world, { token: async () => 'abc', request: { ttl: 600, gateways: [{ namespace: 'media', name: 'frankfurt' }] } });
  const [{ url: requested, headers, body }] = world.requests;
  assert.equal(requested, url);
  assert.equal(headers.Authorization, 'Bearer abc');
  assert.deepEqual(body, { ttl: 600, gateways: [{ namespace: 'media', name: 'frankfurt' }] });
  assert.deepEqual((await servers.get()).iceServers, [{ urls: ['turn:192.0.2.10:3478?transport=udp'], username: '600000:ada', credential: 'secret' }]);
  servers.close();
});

test('a call of three lifetimes never sees an expired credential', async () => {
  for (const ttl of [1, 5, 60, 600, 86_400]) {
    for (const chance of [0, 0.5, 0.999]) {
      const world = new World();
      Object.assign(world, { chance, answer: () => world.grant(ttl) });
      const connection = new Connection();
      const servers = await started(world);
      connection.configuration = { iceServers: (await servers.get()).iceServers };
      servers.attach(connection);
      for (const end = 3000 * ttl; world.time < end; await world.advance(ttl * 20)) {
        for (const held of [await servers.get(), connection.configuration]) {
          assert.ok(expiryOf(held) > world.time, `ttl ${ttl}: servers at ${world.time} ms have expired at ${expiryOf(held)} ms`);
        }
      }
      const most = 3 * Math.max(2, 1) + 1;
      assert.ok(world.requests.length >= 4 && world.requests.length <= most, `ttl ${ttl}: ${world.requests.length} requests`);
      assert.equal(connection.restarts, world.requests.length - 1);
      servers.close();
      assert.equal(world.timers, 0);
    }
  }
});

test('the clock of the client does not matter', async () => {
  for (const ahead of [-60_000, 60_000]) {
    for (const fields of [{}, { ttl: undefined }]) {
      const world = new World();
      Object.assign(world, { ahead, answer: () => world.grant(30, { fields }) });
      const servers = await started(world);
      for (let i = 0; i < 90; i++, await world.advance(1000)) {
        assert.ok(expiryOf(await servers.get()) > world.time, `${ahead} ms ahead: expired at ${world.time}`);
      }
      assert.ok(world.requests.length >= 4 && world.requests.length <= 7, `${ahead} ms ahead: ${world.requests.length} requests`);
      servers.close();
    }
  }
});

test('pages that were opened together renew at different times, between half and two thirds of the lifetime', async () => {
  const times = [];
  for (const chance of [0, 0.25, 0.5, 0.75, 0.999]) {
    const world = new World();
    world.chance = chance;
    const servers = await started(world);
    await world.advance(600_000);
    times.push(world.requests[1].at);
    servers.close();
  }
  assert.equal(new Set(times).size, 5);
  assert.ok(Math.min(...times) >= 300_000 && Math.max(...times) <= 400_000, `${times}`);
});

test('servers with static credentials are not renewed', async () => {
  const world = new World();
  world.answer = () => world.grant(0, { fields: { ttl: undefined, expiresAt: undefined } });
  const servers = await started(world);
  await world.advance(86_400_000);
  await servers.get();
  assert.equal(world.requests.length, 1);
  servers.close();
});

test('429 and 503 are repeated after Retry-After', async () => {
  for (const [status, reason] of [[429, 'source_rate_limited'], [503, 'no_config']]) {
    for (const chance of [0, 0.999]) {
      const world = new World();
      world.chance = chance;
      world.answer = (_, n) => (n <= 2 ? world.refuse(status, reason, { 'Retry-After': '7' }) : world.grant(600));
      const starting = start({ url }, world.environment);
      await world.advance(20_000);
      await starting.then((servers) => servers.close());
      const [first, second, third] = world.requests.map(({ at }) => at);
      for (const wait of [second - first, third - second]) assert.ok(wait >= 7000 && wait < 8000, `${status}: waited ${wait} ms`);
    }
  }
});

test('Retry-After as a date is a time of the service, and a long one is bounded', async () => {
  for (const [headers, least, most] of [
    [{ Date: 'Wed, 01 Jan 2031 00:00:00 GMT', 'Retry-After': 'Wed, 01 Jan 2031 00:00:09 GMT' }, 9000, 9500],
    [{ 'Retry-After': '999999999' }, 300_000, 300_500],
    [{ 'Retry-After': '-5' }, 250, 500],
    [{ 'Retry-After': 'soon' }, 250, 500],
  ]) {
    const world = new World();
    world.answer = (_, n) => (n === 1 ? world.refuse(503, 'no_config', headers) : world.grant(600));
    const starting = start({ url }, world.environment);
    await world.advance(301_000);
    await starting.then((servers) => servers.close());
    const wait = world.requests[1].at;
    assert.ok(wait >= least && wait <= most, `${JSON.stringify(headers)}: waited ${wait} ms`);
  }
});

test('requests without an answer are repeated with a growing, bounded wait with jitter', async () => {
  const waits = async (chance) => {
    const world = new World();
    world.chance = chance;
    world.answer = (_, n) => (n === 1 ? world.grant(3600) : Promise.reject(new TypeError('fetch failed')));
    const errors = [];
    const servers = await started(world, { onError: (error) => errors.push(error) });
    await world.advance(3_600_000);
    servers.close();
    assert.ok(errors.every((error) => error instanceof IceServersError && error.reason === 'unreachable' && error.temporary));
    assert.equal(errors.length, world.requests.length - 1);
    return world.requests.slice(2).map(({ at }, i) => at - world.requests[i + 1].at);
  };
  assert.deepEqual((await waits(0)).slice(0, 9), [250, 500, 1000, 2000, 4000, 8000, 15_000, 15_000, 15_000]);
  assert.deepEqual((await waits(0.5)).slice(0, 9), [375, 750, 1500, 3000, 6000, 12_000, 22_500, 22_500, 22_500]);
});

test('the first servers: five requests, then an error', async () => {
  const world = new World();
  world.answer = () => Promise.reject(new TypeError('fetch failed'));
  const starting = start({ url }, world.environment);
  const refused = assert.rejects(starting, { name: 'IceServersError', reason: 'unreachable', status: 0 });
  await world.advance(60_000);
  await refused;
  assert.equal(world.requests.length, 5);
  assert.equal(world.timers, 0);
});

test('a refusal is an error at once, with status, reason and parameters', async () => {
  const world = new World();
  world.answer = () => world.reply(400, { reason: 'parameter_invalid', detail: 'A parameter is invalid.', errors: [{ parameter: 'ttl', message: 'must be an integer of at least 1' }, 5] });
  const starting = start({ url, request: { ttl: -1 } }, world.environment);
  const refused = assert.rejects(starting, {
    status: 400,
    reason: 'parameter_invalid',
    detail: 'ttl must be an integer of at least 1',
    temporary: false,
    parameters: [{ parameter: 'ttl', message: 'must be an integer of at least 1' }],
    message: `POST ${url}: 400 parameter_invalid: ttl must be an integer of at least 1`,
  });
  await world.advance(0);
  await refused;
  assert.equal(world.requests.length, 1);
});

test('a refused renewal goes on, with each token that the application gets', async () => {
  const world = new World();
  const tokens = ['first', 'expired', 'expired', 'fresh'];
  world.answer = ({ headers }) => (headers.Authorization === 'Bearer expired' ? world.refuse(401, 'token_expired') : world.grant(600));
  const reasons = [];
  const servers = await started(world, { token: () => tokens.shift() ?? 'fresh', onError: ({ reason }) => reasons.push(reason) });
  for (let i = 0; i < 1200; i++, await world.advance(1000)) assert.ok(expiryOf(await servers.get()) > world.time);
  assert.deepEqual(reasons, ['token_expired', 'token_expired']);
  servers.close();
});

test('a token that cannot be got is an error, and is got again', async () => {
  const world = new World();
  let calls = 0;
  const token = () => {
    if (++calls < 3) throw new Error('the session has ended');
    return 'abc';
  };
  const starting = start({ url, token }, world.environment);
  await world.advance(10_000);
  await starting.then((servers) => servers.close());
  assert.equal(calls, 3);
  for (const bad of ['', 'a b', 'a\r\nX-Other: 1', 'é']) {
    const refused = assert.rejects(start({ url, token: bad }, world.environment), { reason: 'option_invalid' });
    await world.advance(0);
    await refused;
  }
});

test('a request that hangs is ended by its timeout, even if fetch ignores that', async () => {
  const world = new World();
  world.environment.fetch = (_, { signal }) => {
    world.requests.push({ at: world.time, signal });
    return world.requests.length === 1 ? new Promise(() => {}) : Promise.resolve(world.grant(600));
  };
  const starting = start({ url, timeout: 3000 }, world.environment);
  await world.advance(4000);
  const servers = await starting;
  assert.ok(world.requests[0].signal.aborted);
  assert.ok(world.requests[1].at >= 3250 && world.requests[1].at <= 3500);
  servers.close();
});

test('after the computer slept, servers are renewed before they are given', async () => {
  const world = new World();
  const servers = await started(world);
  await servers.get();
  world.sleep(3_600_000);
  const got = servers.get();
  await world.advance(0);
  assert.ok(expiryOf(await got) > world.time);
  assert.equal(world.requests.length, 2);
  servers.close();
});

test('a computer that slept renews within half a minute by itself', async () => {
  const world = new World();
  const servers = await started(world);
  world.sleep(3_600_000);
  await world.advance(30_000);
  assert.equal(world.requests.length, 2);
  servers.close();
});

test('all that wait get the same servers from one request', async () => {
  const world = new World();
  const servers = await started(world);
  world.sleep(3_600_000);
  const all = Promise.all(Array.from({ length: 50 }, () => servers.get()));
  await world.advance(0);
  assert.equal(new Set((await all).map(expiryOf)).size, 1);
  assert.equal(world.requests.length, 2);
  servers.close();
});

test('expired servers are not given while the service is away', async () => {
  const world = new World();
  let away = false;
  world.answer = () => (away ? Promise.reject(new TypeError('fetch failed')) : world.grant(60));
  const servers = await started(world);
  away = true;
  await world.advance(60_000);
  const refused = assert.rejects(servers.get(), { reason: 'unreachable' });
  await world.advance(31_000);
  await refused;
  const waiting = servers.get();
  away = false;
  await world.advance(31_000);
  assert.ok(expiryOf(await waiting) > world.time);
  servers.close();
});

test('an attached connection keeps its configuration, and gets new servers', async () => {
  const world = new World();
  const renewals = [];
  const servers = await started(world, { onRenewal: (renewed) => renewals.push(renewed) });
  const [call, watched, closed, left] = Array.from({ length: 4 }, () => new Connection());
  servers.attach(call);
  servers.attach(watched, { restart: false });
  servers.attach(closed);
  servers.attach(left)();
  closed.signalingState = 'closed';
  closed.setConfiguration = () => assert.fail('a closed connection is told');
  await world.advance(400_000);
  assert.equal(renewals.length, 1);
  assert.deepEqual(call.configuration, { bundlePolicy: 'max-bundle', iceTransportPolicy: 'relay', iceServers: renewals[0].iceServers });
  assert.deepEqual([call.restarts, watched.restarts, left.restarts], [1, 0, 0]);
  assert.deepEqual(watched.configuration, call.configuration);
  assert.deepEqual(left.configuration.iceServers, []);
  servers.close();
});

test('close and a signal end a renewal, its request and those that wait', async () => {
  for (const bySignal of [false, true]) {
    const world = new World();
    const abort = new AbortController();
    const servers = await started(world, { signal: abort.signal });
    world.answer = () => new Promise(() => {});
    world.sleep(3_600_000);
    const waiting = servers.get();
    await world.advance(0);
    const rejected = assert.rejects(waiting, { name: 'AbortError' });
    bySignal ? abort.abort() : servers.close();
    await rejected;
    await assert.rejects(servers.get(), { name: 'AbortError' });
    assert.ok(world.requests[1].signal.aborted);
    await world.advance(86_400_000);
    assert.equal(world.requests.length, 2);
    assert.equal(world.timers, 0);
  }
  const world = new World();
  await assert.rejects(start({ url, signal: AbortSignal.abort() }, world.environment), { name: 'AbortError' });
  assert.equal(world.requests.length, 0);
});
