// Answers that are not those of the service.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { start } from '../dist/renewal.js';
import { World } from './virtual.mjs';

const server = { urls: ['turn:192.0.2.10:3478?transport=udp'], username: 'ada', credential: 'secret' };
const good = { iceServers: [server], iceTransportPolicy: 'all', ttl: 600 };

const broken = {
  'no JSON': ['<html>It works!</html>', /iceServers is no list/],
  'no object': ['[]', /iceServers is no list/],
  'no servers': [{ ...good, iceServers: [] }, /iceServers is no list/],
  'too many servers': [{ ...good, iceServers: Array(1001).fill(server) }, /iceServers is no list of 1 to 1000/],
  'a server that is null': [{ ...good, iceServers: [null] }, /iceServers\[0\]\.urls/],
  'a URL of another kind': [{ ...good, iceServers: [{ ...server, urls: ['https://example.org'] }] }, /iceServers\[0\]\.urls/],
  'urls as text': [{ ...good, iceServers: [{ ...server, urls: server.urls[0] }] }, /iceServers\[0\]\.urls/],
  'a user name without a password': [{ ...good, iceServers: [server, { urls: server.urls, username: 'ada' }] }, /iceServers\[1\] needs username/],
  'a password that is a number': [{ ...good, iceServers: [{ ...server, credential: 5 }] }, /iceServers\[0\] needs username/],
  'an unknown policy': [{ ...good, iceTransportPolicy: 'public' }, /iceTransportPolicy/],
  'a ttl below 0': [{ ...good, ttl: -1 }, /ttl is no number/],
  'a ttl that is no integer': [{ ...good, ttl: '600' }, /ttl is no number/],
  'a ttl of centuries': [{ ...good, ttl: 1e12 }, /ttl is no number/],
  'a ttl of 0': [{ ...good, ttl: 0 }, /expire at once/],
  'an expiry without a time of the service': [{ ...good, ttl: undefined, expiresAt: '2031-01-01T00:00:00Z' }, /neither ttl nor the header Date/],
  'an expiry that is no date': [{ ...good, expiresAt: 'soon' }, /expiresAt is no date/],
  'an endless answer': [`"${'x'.repeat(2 << 20)}"`, /longer than 1048576 bytes/],
};

for (const [name, [body, message]] of Object.entries(broken)) {
  test(name, async () => {
    const world = new World();
    world.answer = () => world.reply(201, body);
    const refused = assert.rejects(start({ url: 'https://auth.example.org/v1/ice-servers' }, world.environment), { reason: 'answer_invalid', temporary: false, message });
    await world.advance(0);
    await refused;
    assert.equal(world.requests.length, 1);
  });
}

test('an answer has no more fields than the contract', async () => {
  const world = new World();
  world.answer = () => world.reply(201, { ...good, iceServers: [{ ...server, certificate: 'x' }, { urls: ['stun:192.0.2.10:3478'] }], bundlePolicy: 'balanced' });
  const starting = start({ url: 'https://auth.example.org/v1/ice-servers' }, world.environment);
  await world.advance(0);
  const servers = await starting;
  assert.deepEqual(await servers.get(), { ...good, iceServers: [server, { urls: ['stun:192.0.2.10:3478'] }] });
  servers.close();
});

test('options that cannot work are refused', async () => {
  const url = 'https://auth.example.org/v1/ice-servers';
  for (const options of [{ url: '/v1/ice-servers' }, { url: 'https://' }, { url, timeout: 0 }, { url, timeout: Infinity }, { url, request: { ttl: 600n } }]) {
    const world = new World();
    const refused = assert.rejects(start(options, world.environment), { reason: 'option_invalid' });
    await world.advance(0);
    await refused;
    assert.equal(world.requests.length, 0);
  }
});
