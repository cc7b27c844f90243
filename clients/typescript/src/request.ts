import type { components } from './types.gen.js';
import type { Environment } from './environment.js';
import { IceServersError, type ParameterError } from './error.js';

/** The body of the request. */
export type IceServersRequest = components['schemas']['IceServersRequest'];

/** ICE servers with credentials: a valid argument of `new RTCPeerConnection(…)`. */
export type IceServers = components['schemas']['IceServers'];

/** One ICE server of an answer. */
export type IceServer = components['schemas']['IceServer'];

/** Where to request ICE servers, and as whom. */
export interface RequestOptions {
  /** URL of `POST /v1/ice-servers`; in a browser it may be relative to the page. */
  url: string | URL;
  /** The bearer token: a JSON Web Token or an API key, or a function that returns one and is called before each request. */
  token?: string | (() => string | Promise<string>);
  /** The body of the request. Without it the service chooses the gateways and the lifetime. */
  request?: IceServersRequest;
  /** Milliseconds that one request may take, at most 600,000, and 10,000 unless set. */
  timeout?: number;
}

/** An answer of the service, and how long its credentials are good for. */
export interface Answer {
  readonly servers: IceServers;
  /** When the request was sent, in the time of the environment. */
  readonly sent: number;
  /** Milliseconds from then on, in which all credentials are valid; Infinity if none expires. */
  readonly lifetime: number;
}

const longestAnswer = 1 << 20; // bytes; 100 gateways with 5 URLs each need less than 100,000
const longestTimeout = 600_000; // ms
const mostServers = 1000;
const longestTTL = 10 * 365 * 86_400; // seconds

/** Makes one request. The signal ends it. */
export async function requestOnce(options: RequestOptions, environment: Environment, signal: AbortSignal): Promise<Answer> {
  const url = absolute(options.url);
  const limit = options.timeout ?? 10_000;
  if (!(limit > 0 && limit <= longestTimeout)) throw invalid(`timeout is ${limit}: set 1 to ${longestTimeout} milliseconds`);
  const attempt = new AbortController();
  const abort = () => attempt.abort(signal.reason);
  const timedOut = new IceServersError(`POST ${url}: no answer within ${limit} ms: is the service reachable from here?`, {
    reason: 'timeout',
    temporary: true,
  });
  if (signal.aborted) abort();
  signal.addEventListener('abort', abort);
  const cancel = environment.after(limit, () => attempt.abort(timedOut));
  try {
    // A function of the application, or an implementation of fetch, may ignore the signal.
    return await Promise.race([exchange(url, options, environment, attempt.signal), aborted(attempt.signal)]);
  } finally {
    cancel();
    signal.removeEventListener('abort', abort);
  }
}

function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener('abort', () => reject(signal.reason));
  });
}

async function exchange(url: string, options: RequestOptions, environment: Environment, signal: AbortSignal): Promise<Answer> {
  const headers: Record<string, string> = { 'Content-Type': 'application/json' };
  const body = bodyOf(options);
  const token = await tokenOf(options);
  if (token !== undefined) headers['Authorization'] = `Bearer ${token}`;
  signal.throwIfAborted();
  const sent = environment.now();
  let response: Response;
  let text: string;
  try {
    response = await environment.fetch(url, { method: 'POST', headers, body, cache: 'no-store', signal });
    text = await read(response);
  } catch (cause) {
    signal.throwIfAborted();
    if (cause instanceof IceServersError) throw cause;
    throw new IceServersError(`POST ${url}: ${messageOf(cause)}: is the service reachable from here, and does --cors-origins admit this page?`, {
      reason: 'unreachable',
      temporary: true,
      cause,
    });
  }
  if (!response.ok) throw refusal(url, response, text);
  const servers = parse(url, text);
  const lifetime = lifetimeOf(url, servers, response.headers.get('Date'));
  if (lifetime <= 0) throw broken(url, 'the credentials expire at once');
  return { servers, sent, lifetime };
}

function absolute(url: string | URL): string {
  try {
    return new URL(url, globalThis.location?.href).href;
  } catch (cause) {
    throw invalid(`url is ${JSON.stringify(String(url))}: outside of a page it must be absolute, such as https://example.org/v1/ice-servers`, cause);
  }
}

function bodyOf({ request = {} }: RequestOptions): string {
  try {
    return JSON.stringify(request);
  } catch (cause) {
    throw invalid(`request: ${messageOf(cause)}`, cause);
  }
}

async function tokenOf({ token }: RequestOptions): Promise<string | undefined> {
  if (token === undefined) return undefined;
  let value = token;
  if (typeof value === 'function') {
    try {
      value = await value();
    } catch (cause) {
      throw new IceServersError(`get token: ${messageOf(cause)}`, { reason: 'token_failed', temporary: true, cause });
    }
  }
  if (typeof value !== 'string' || !/^[\x21-\x7e]+$/.test(value)) throw invalid('token is empty or has characters that a header cannot have');
  return value;
}

/** Reads a body up to the longest answer that the service gives. */
async function read(response: Response): Promise<string> {
  const reader = response.body?.getReader();
  if (!reader) return '';
  const decoder = new TextDecoder();
  let text = '';
  for (let length = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    if ((length += value.length) > longestAnswer) {
      await reader.cancel();
      throw new IceServersError(`${response.url}: the answer is longer than ${longestAnswer} bytes: is url that of POST /v1/ice-servers?`, {
        reason: 'answer_invalid',
        status: response.status,
        temporary: false,
      });
    }
    text += decoder.decode(value, { stream: true });
  }
}

/** Statuses after which the same request may succeed. */
const temporary = (status: number) => status >= 500 || status === 408 || status === 425 || status === 429;

function refusal(url: string, response: Response, text: string): IceServersError {
  const problem = objectOf(text);
  const word = (value: unknown) => (typeof value === 'string' ? value : '');
  const parameters: ParameterError[] = (Array.isArray(problem['errors']) ? problem['errors'] : [])
    .filter((e): e is ParameterError => typeof e?.parameter === 'string' && typeof e?.message === 'string')
    .map(({ parameter, message }) => ({ parameter, message }));
  const detail = parameters.map((e) => `${e.parameter} ${e.message}`).join('; ') || word(problem['detail']) || response.statusText;
  const reason = word(problem['reason']) || 'status'; // a proxy sends no reason
  return new IceServersError(`POST ${url}: ${response.status} ${reason}: ${detail}`, {
    reason,
    detail,
    status: response.status,
    temporary: temporary(response.status),
    retryAfter: retryAfter(response.headers),
    parameters,
  });
}

/** Reads the header Retry-After (RFC 9110 section 10.2.3). The date in it is compared with that of the server, because the clock here may be wrong. */
function retryAfter(headers: Headers): number | undefined {
  const value = headers.get('Retry-After') ?? '';
  const ms = /^\d{1,9}$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.parse(headers.get('Date') ?? '');
  return Number.isFinite(ms) ? Math.max(0, ms) : undefined;
}

/**
 * The lifetime of credentials is not the difference of expiresAt and the clock here, which may be wrong. A service that sends no ttl sends its
 * time in the header Date, which has whole seconds.
 */
function lifetimeOf(url: string, { ttl, expiresAt }: IceServers, date: string | null): number {
  if (ttl !== undefined) return ttl * 1000;
  if (expiresAt === undefined) return Infinity;
  const lifetime = Date.parse(expiresAt) - Date.parse(date ?? '') - 1000;
  if (Number.isNaN(lifetime)) throw broken(url, 'expiresAt is there, but neither ttl nor the header Date');
  return lifetime;
}

function parse(url: string, text: string): IceServers {
  const answer = objectOf(text);
  const { iceServers, iceTransportPolicy, ttl, expiresAt } = answer;
  if (!Array.isArray(iceServers) || iceServers.length === 0 || iceServers.length > mostServers) {
    throw broken(url, `iceServers is no list of 1 to ${mostServers} servers`);
  }
  if (iceTransportPolicy !== 'all' && iceTransportPolicy !== 'relay') throw broken(url, 'iceTransportPolicy is neither all nor relay');
  if (ttl !== undefined && !(Number.isInteger(ttl) && (ttl as number) >= 0 && (ttl as number) <= longestTTL)) {
    throw broken(url, `ttl is no number of seconds from 0 to ${longestTTL}`);
  }
  if (expiresAt !== undefined && (typeof expiresAt !== 'string' || Number.isNaN(Date.parse(expiresAt)))) throw broken(url, 'expiresAt is no date');
  return {
    iceServers: iceServers.map((server: unknown, i) => serverOf(url, server, i)),
    iceTransportPolicy,
    ...(ttl === undefined ? {} : { ttl: ttl as number }),
    ...(expiresAt === undefined ? {} : { expiresAt }),
  };
}

function serverOf(url: string, server: unknown, i: number): IceServer {
  const { urls, username, credential } = (server ?? {}) as Record<string, unknown>;
  if (!Array.isArray(urls) || urls.length === 0 || !urls.every((u): u is string => typeof u === 'string' && /^(turns?|stuns?):/.test(u))) {
    throw broken(url, `iceServers[${i}].urls is no list of turn: and stun: URLs`);
  }
  if (typeof username !== typeof credential || !['string', 'undefined'].includes(typeof username)) {
    throw broken(url, `iceServers[${i}] needs username and credential, or neither`);
  }
  return username === undefined ? { urls } : { urls, username: username as string, credential: credential as string };
}

function objectOf(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {}; // a proxy answers with HTML
  }
}

function broken(url: string, what: string): IceServersError {
  return new IceServersError(`${url}: ${what}: is url that of POST /v1/ice-servers?`, { reason: 'answer_invalid', temporary: false });
}

function invalid(message: string, cause?: unknown): IceServersError {
  return new IceServersError(message, { reason: 'option_invalid', temporary: false, cause });
}

const messageOf = (cause: unknown) => (cause instanceof Error ? cause.message : String(cause));
