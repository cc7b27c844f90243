// Virtual time for tests: an environment whose clock moves only when a test advances it, and a service that answers what a test tells it.

/** Lets everything run that does not wait for time. */
const settle = () =>
  new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      port2.close();
      resolve();
    };
    port2.postMessage(0);
  });

export class World {
  time = 0;
  /** Random numbers are this one. */
  chance = 0.5;
  /** How the clock of the service differs from that of the client, in ms. */
  ahead = 0;
  /** Requests in the order of their arrival: {at, headers, body, signal}. */
  requests = [];
  /** What the service does with a request: a function that returns a Response, or a promise of one. */
  answer = () => this.grant(600);
  #timers = new Set();
  /** Answers that the client has not read to their end. */
  #unread = 0;

  environment = {
    now: () => this.time,
    after: (ms, call) => {
      const timer = { at: this.time + ms, call };
      this.#timers.add(timer);
      return () => this.#timers.delete(timer);
    },
    random: () => this.chance,
    fetch: (url, { headers, body, signal }) => {
      const request = { at: this.time, url, headers, body: JSON.parse(body), signal };
      this.requests.push(request);
      return new Promise((resolve, reject) => {
        signal.addEventListener('abort', () => reject(signal.reason));
        Promise.resolve(this.answer(request, this.requests.length)).then(resolve, reject);
      });
    },
  };

  /** Number of timers that are set. */
  get timers() {
    return this.#timers.size;
  }

  /** Advances the time, and calls what is due in its order. */
  async advance(ms) {
    const end = this.time + ms;
    for (;;) {
      do await settle();
      while (this.#unread > 0);
      const due = [...this.#timers].filter(({ at }) => at <= end).sort((a, b) => a.at - b.at)[0];
      if (!due) break;
      this.#timers.delete(due);
      this.time = Math.max(this.time, due.at);
      due.call();
    }
    this.time = end;
  }

  /** The time passes, but timers do not run, as while the computer sleeps. */
  sleep(ms) {
    this.time += ms;
    for (const timer of this.#timers) timer.at += ms;
  }

  /** An answer with credentials for a number of seconds. The user name says when they expire, in the time of the client. */
  grant(ttl, { fields, headers } = {}) {
    const now = Date.UTC(2031, 0, 1) + this.ahead + this.time;
    return this.reply(
      201,
      {
        iceServers: [{ urls: ['turn:192.0.2.10:3478?transport=udp'], username: `${this.time + ttl * 1000}:ada`, credential: 'secret' }],
        iceTransportPolicy: 'all',
        expiresAt: new Date(now + ttl * 1000).toISOString(),
        ttl,
        ...fields,
      },
      { Date: new Date(now).toUTCString(), ...headers },
    );
  }

  /** An error of the service. */
  refuse(status, reason, headers) {
    return this.reply(status, { type: 'about:blank', title: 'Refused', status, detail: 'In detail.', instance: '/v1/ice-servers', reason }, headers);
  }

  reply(status, body, headers = {}) {
    const bytes = new TextEncoder().encode(typeof body === 'string' ? body : JSON.stringify(body));
    const read = () => this.#unread--;
    this.#unread++;
    const stream = new ReadableStream({
      pull: (controller) => {
        controller.enqueue(bytes);
        controller.close();
        read();
      },
      cancel: read,
    }, { highWaterMark: 0 });
    return new Response(stream, { status, headers });
  }
}

/** When the credentials of an answer expire, in the time of the client. */
export const expiryOf = ({ iceServers }) => Number(iceServers[0].username.split(':')[0]);
