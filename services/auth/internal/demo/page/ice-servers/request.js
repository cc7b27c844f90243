import { IceServersError } from './error.js';
const longestAnswer = 1 << 20;
const longestTimeout = 600_000;
const mostServers = 1000;
const longestTTL = 10 * 365 * 86_400;
export async function requestOnce(options, environment, signal) {
    const url = absolute(options.url);
    const limit = options.timeout ?? 10_000;
    if (!(limit > 0 && limit <= longestTimeout))
        throw invalid(`timeout is ${limit}: set 1 to ${longestTimeout} milliseconds`);
    const attempt = new AbortController();
    const abort = () => attempt.abort(signal.reason);
    const timedOut = new IceServersError(`POST ${url}: no answer within ${limit} ms: is the service reachable from here?`, {
        reason: 'timeout',
        temporary: true,
    });
    if (signal.aborted)
        abort();
    signal.addEventListener('abort', abort);
    const cancel = environment.after(limit, () => attempt.abort(timedOut));
    try {
        return await Promise.race([exchange(url, options, environment, attempt.signal), aborted(attempt.signal)]);
    }
    finally {
        cancel();
        signal.removeEventListener('abort', abort);
    }
}
function aborted(signal) {
    return new Promise((_, reject) => {
        if (signal.aborted)
            reject(signal.reason);
        signal.addEventListener('abort', () => reject(signal.reason));
    });
}
async function exchange(url, options, environment, signal) {
    const headers = { 'Content-Type': 'application/json' };
    const body = bodyOf(options);
    const token = await tokenOf(options);
    if (token !== undefined)
        headers['Authorization'] = `Bearer ${token}`;
    signal.throwIfAborted();
    const sent = environment.now();
    let response;
    let text;
    try {
        response = await environment.fetch(url, { method: 'POST', headers, body, cache: 'no-store', signal });
        text = await read(response);
    }
    catch (cause) {
        signal.throwIfAborted();
        if (cause instanceof IceServersError)
            throw cause;
        throw new IceServersError(`POST ${url}: ${messageOf(cause)}: is the service reachable from here, and does --cors-origins admit this page?`, {
            reason: 'unreachable',
            temporary: true,
            cause,
        });
    }
    if (!response.ok)
        throw refusal(url, response, text);
    const servers = parse(url, text);
    const lifetime = lifetimeOf(url, servers, response.headers.get('Date'));
    if (lifetime <= 0)
        throw broken(url, 'the credentials expire at once');
    return { servers, sent, lifetime };
}
function absolute(url) {
    try {
        return new URL(url, globalThis.location?.href).href;
    }
    catch (cause) {
        throw invalid(`url is ${JSON.stringify(String(url))}: outside of a page it must be absolute, such as https://example.org/v1/ice-servers`, cause);
    }
}
function bodyOf({ request = {} }) {
    try {
        return JSON.stringify(request);
    }
    catch (cause) {
        throw invalid(`request: ${messageOf(cause)}`, cause);
    }
}
async function tokenOf({ token }) {
    if (token === undefined)
        return undefined;
    let value = token;
    if (typeof value === 'function') {
        try {
            value = await value();
        }
        catch (cause) {
            throw new IceServersError(`get token: ${messageOf(cause)}`, { reason: 'token_failed', temporary: true, cause });
        }
    }
    if (typeof value !== 'string' || !/^[\x21-\x7e]+$/.test(value))
        throw invalid('token is empty or has characters that a header cannot have');
    return value;
}
async function read(response) {
    const reader = response.body?.getReader();
    if (!reader)
        return '';
    const decoder = new TextDecoder();
    let text = '';
    for (let length = 0;;) {
        const { done, value } = await reader.read();
        if (done)
            return text + decoder.decode();
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
const temporary = (status) => status >= 500 || status === 408 || status === 425 || status === 429;
function refusal(url, response, text) {
    const problem = objectOf(text);
    const word = (value) => (typeof value === 'string' ? value : '');
    const parameters = (Array.isArray(problem['errors']) ? problem['errors'] : [])
        .filter((e) => typeof e?.parameter === 'string' && typeof e?.message === 'string')
        .map(({ parameter, message }) => ({ parameter, message }));
    const detail = parameters.map((e) => `${e.parameter} ${e.message}`).join('; ') || word(problem['detail']) || response.statusText;
    const reason = word(problem['reason']) || 'status';
    return new IceServersError(`POST ${url}: ${response.status} ${reason}: ${detail}`, {
        reason,
        detail,
        status: response.status,
        temporary: temporary(response.status),
        retryAfter: retryAfter(response.headers),
        parameters,
    });
}
function retryAfter(headers) {
    const value = headers.get('Retry-After') ?? '';
    const ms = /^\d{1,9}$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.parse(headers.get('Date') ?? '');
    return Number.isFinite(ms) ? Math.max(0, ms) : undefined;
}
function lifetimeOf(url, { ttl, expiresAt }, date) {
    if (ttl !== undefined)
        return ttl * 1000;
    if (expiresAt === undefined)
        return Infinity;
    const lifetime = Date.parse(expiresAt) - Date.parse(date ?? '') - 1000;
    if (Number.isNaN(lifetime))
        throw broken(url, 'expiresAt is there, but neither ttl nor the header Date');
    return lifetime;
}
function parse(url, text) {
    const answer = objectOf(text);
    const { iceServers, iceTransportPolicy, ttl, expiresAt } = answer;
    if (!Array.isArray(iceServers) || iceServers.length === 0 || iceServers.length > mostServers) {
        throw broken(url, `iceServers is no list of 1 to ${mostServers} servers`);
    }
    if (iceTransportPolicy !== 'all' && iceTransportPolicy !== 'relay')
        throw broken(url, 'iceTransportPolicy is neither all nor relay');
    if (ttl !== undefined && !(Number.isInteger(ttl) && ttl >= 0 && ttl <= longestTTL)) {
        throw broken(url, `ttl is no number of seconds from 0 to ${longestTTL}`);
    }
    if (expiresAt !== undefined && (typeof expiresAt !== 'string' || Number.isNaN(Date.parse(expiresAt))))
        throw broken(url, 'expiresAt is no date');
    return {
        iceServers: iceServers.map((server, i) => serverOf(url, server, i)),
        iceTransportPolicy,
        ...(ttl === undefined ? {} : { ttl: ttl }),
        ...(expiresAt === undefined ? {} : { expiresAt }),
    };
}
function serverOf(url, server, i) {
    const { urls, username, credential } = (server ?? {});
    if (!Array.isArray(urls) || urls.length === 0 || !urls.every((u) => typeof u === 'string' && /^(turns?|stuns?):/.test(u))) {
        throw broken(url, `iceServers[${i}].urls is no list of turn: and stun: URLs`);
    }
    if (typeof username !== typeof credential || !['string', 'undefined'].includes(typeof username)) {
        throw broken(url, `iceServers[${i}] needs username and credential, or neither`);
    }
    return username === undefined ? { urls } : { urls, username: username, credential: credential };
}
function objectOf(text) {
    try {
        const value = JSON.parse(text);
        return typeof value === 'object' && value !== null ? value : {};
    }
    catch {
        return {};
    }
}
function broken(url, what) {
    return new IceServersError(`${url}: ${what}: is url that of POST /v1/ice-servers?`, { reason: 'answer_invalid', temporary: false });
}
function invalid(message, cause) {
    return new IceServersError(message, { reason: 'option_invalid', temporary: false, cause });
}
const messageOf = (cause) => (cause instanceof Error ? cause.message : String(cause));
