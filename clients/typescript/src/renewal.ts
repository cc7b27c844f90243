import { type Environment, standardEnvironment } from './environment.js';
import { IceServersError } from './error.js';
import { type Answer, type IceServers, requestOnce, type RequestOptions } from './request.js';

/** Options of {@link iceServers}. */
export interface Options extends RequestOptions {
  /** Ends the renewal, and the request that is made. */
  signal?: AbortSignal;
  /** Is called with the servers of each renewal, after the attached connections have got them. */
  onRenewal?(servers: IceServers): void;
  /** Is called with the error of each request that fails. Another one follows. */
  onError?(error: IceServersError): void;
}

/** The part of an RTCPeerConnection that a renewal needs. */
export interface Connection {
  readonly signalingState: string;
  getConfiguration(): object;
  setConfiguration(configuration: object): void;
  restartIce(): void;
}

/** ICE servers that are renewed before their credentials expire. */
export interface RenewedIceServers {
  /**
   * Resolves to servers whose credentials have not expired. It waits only if a renewal was not possible in time, such as after the computer
   * slept, and rejects if the service refuses, or does not answer five requests in a row.
   */
  get(): Promise<IceServers>;
  /**
   * Gives the servers of each renewal to a connection by setConfiguration, until it is closed. The browser uses new servers when it gathers
   * candidates, and a gateway ends a call whose credential has expired. So restartIce is called too, unless restart is false: the event
   * negotiationneeded follows, and its handler negotiates as at the start of the call. Returns a function that detaches the connection.
   */
  attach(connection: Connection, options?: { restart?: boolean }): () => void;
  /** Ends the renewal. */
  close(): void;
}

const mostFailures = 5; // in a row, until get rejects
const firstBackoff = 500; // ms
const longestBackoff = 30_000; // ms
const longestRetryAfter = 300_000; // ms
const longestNap = 30_000; // ms; timers may stop while the computer sleeps
const shortestRenewal = 1000; // ms between renewals, whatever the lifetime
const longestSpare = 10_000; // ms

/** Requests ICE servers, and renews them until close is called or the signal is aborted. */
export async function iceServers(options: Options): Promise<RenewedIceServers> {
  return start(options, standardEnvironment());
}

/** iceServers in an environment. */
export async function start(options: Options, environment: Environment): Promise<RenewedIceServers> {
  const renewal = new Renewal(options, environment);
  try {
    await renewal.get();
  } catch (error) {
    renewal.close();
    throw error;
  }
  return renewal;
}

/** A caller of get that waits. */
interface Waiting {
  resolve(servers: IceServers): void;
  reject(error: unknown): void;
}

/**
 * A renewal is in one of three states: it makes a request, waits after a request that failed, or holds servers until it is time to renew them.
 * The function run goes through them. Those that call get wait for its next success, or for an error that they must know.
 */
class Renewal implements RenewedIceServers {
  readonly #options: Options;
  readonly #environment: Environment;
  readonly #end = new AbortController();
  readonly #attached = new Map<Connection, { restart: boolean }>();
  #answer: Answer | undefined;
  #waiting: Waiting[] = [];
  /** Ends a nap while servers are held. */
  #wake: (() => void) | undefined;

  constructor(options: Options, environment: Environment) {
    this.#options = options;
    this.#environment = environment;
    const { signal } = options;
    const abort = () => this.#close(signal?.reason);
    signal?.addEventListener('abort', abort, { signal: this.#end.signal });
    if (signal?.aborted) abort();
    void this.#run();
  }

  get(): Promise<IceServers> {
    if (this.#end.signal.aborted) return Promise.reject(this.#end.signal.reason);
    const answer = this.#answer;
    if (answer && this.#environment.now() < answer.sent + answer.lifetime - Math.min(answer.lifetime / 4, longestSpare)) return Promise.resolve(answer.servers);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      this.#wake?.();
    });
  }

  attach(connection: Connection, { restart = true }: { restart?: boolean } = {}): () => void {
    this.#forgetClosed();
    this.#attached.set(connection, { restart });
    return () => void this.#attached.delete(connection);
  }

  close(): void {
    this.#close(new DOMException('the ICE servers are closed', 'AbortError'));
  }

  #close(reason: unknown): void {
    this.#end.abort(reason);
    this.#attached.clear();
    this.#settle((waiting) => waiting.reject(reason));
  }

  async #run(): Promise<void> {
    const { signal } = this.#end;
    for (let failures = 0; !signal.aborted; ) {
      try {
        const answer = await requestOnce(this.#options, this.#environment, signal);
        failures = 0;
        this.#take(answer);
        await this.#hold(answer);
      } catch (error) {
        if (signal.aborted) return;
        failures++;
        const known = error instanceof IceServersError ? error : new IceServersError(String(error), { reason: 'internal', temporary: true, cause: error });
        if (!known.temporary || failures >= mostFailures) this.#settle((waiting) => waiting.reject(known));
        this.#report(() => this.#options.onError?.(known));
        await this.#sleep(this.#backoff(known, failures));
      }
    }
  }

  #take(answer: Answer): void {
    const renewed = this.#answer !== undefined;
    this.#answer = answer;
    this.#forgetClosed();
    for (const [connection, { restart }] of renewed ? this.#attached : []) {
      this.#report(() => {
        connection.setConfiguration({ ...connection.getConfiguration(), iceServers: answer.servers.iceServers });
        if (restart) connection.restartIce();
      });
    }
    this.#settle((waiting) => waiting.resolve(answer.servers));
    if (renewed) this.#report(() => this.#options.onRenewal?.(answer.servers));
  }

  #forgetClosed(): void {
    for (const connection of this.#attached.keys()) {
      if (connection.signalingState === 'closed') this.#attached.delete(connection);
    }
  }

  /** Calls code of the application, whose errors must not end the renewal. They become unhandled errors, which the console shows. */
  #report(call: () => void): void {
    try {
      call();
    } catch (error) {
      queueMicrotask(() => {
        throw error;
      });
    }
  }

  /**
   * Waits until it is time to renew: a random time between half and two thirds of the lifetime, so that pages that were opened together do not
   * renew together, and a third of the lifetime is left for further requests. Short naps notice that the computer slept.
   */
  async #hold({ sent, lifetime }: Answer): Promise<void> {
    const due = sent + Math.max(Math.round(lifetime * (1 / 2 + this.#environment.random() / 6)), shortestRenewal);
    for (let left; this.#waiting.length === 0 && (left = due - this.#environment.now()) > 0 && !this.#end.signal.aborted; ) {
      await this.#sleep(Math.min(left, longestNap), true);
    }
  }

  #backoff({ temporary, retryAfter }: IceServersError, failures: number): number {
    const longest = temporary ? Math.min(firstBackoff * 2 ** (failures - 1), longestBackoff) : longestBackoff;
    const least = retryAfter === undefined ? longest / 2 : Math.min(retryAfter, longestRetryAfter);
    return least + (this.#environment.random() * longest) / 2;
  }

  /** Waits for a time, at most until the end of the renewal. */
  #sleep(ms: number, wakes = false): Promise<void> {
    const { signal } = this.#end;
    return new Promise((resolve) => {
      const awake = () => {
        cancel();
        signal.removeEventListener('abort', awake);
        this.#wake = undefined;
        resolve();
      };
      const cancel = this.#environment.after(ms, awake);
      signal.addEventListener('abort', awake);
      if (wakes) this.#wake = awake;
      if (signal.aborted) awake();
    });
  }

  #settle(settle: (waiting: Waiting) => void): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    waiting.forEach(settle);
  }
}
