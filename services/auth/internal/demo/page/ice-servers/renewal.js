import { standardEnvironment } from './environment.js';
import { IceServersError } from './error.js';
import { requestOnce } from './request.js';
const mostFailures = 5;
const firstBackoff = 500;
const longestBackoff = 30_000;
const longestRetryAfter = 300_000;
const longestNap = 30_000;
const shortestRenewal = 1000;
const longestSpare = 10_000;
export async function iceServers(options) {
    return start(options, standardEnvironment());
}
export async function start(options, environment) {
    const renewal = new Renewal(options, environment);
    try {
        await renewal.get();
    }
    catch (error) {
        renewal.close();
        throw error;
    }
    return renewal;
}
class Renewal {
    #options;
    #environment;
    #end = new AbortController();
    #attached = new Map();
    #answer;
    #waiting = [];
    #wake;
    constructor(options, environment) {
        this.#options = options;
        this.#environment = environment;
        const { signal } = options;
        const abort = () => this.#close(signal?.reason);
        signal?.addEventListener('abort', abort, { signal: this.#end.signal });
        if (signal?.aborted)
            abort();
        void this.#run();
    }
    get() {
        if (this.#end.signal.aborted)
            return Promise.reject(this.#end.signal.reason);
        const answer = this.#answer;
        if (answer && this.#environment.now() < answer.sent + answer.lifetime - Math.min(answer.lifetime / 4, longestSpare))
            return Promise.resolve(answer.servers);
        return new Promise((resolve, reject) => {
            this.#waiting.push({ resolve, reject });
            this.#wake?.();
        });
    }
    attach(connection, { restart = true } = {}) {
        this.#forgetClosed();
        this.#attached.set(connection, { restart });
        return () => void this.#attached.delete(connection);
    }
    close() {
        this.#close(new DOMException('the ICE servers are closed', 'AbortError'));
    }
    #close(reason) {
        this.#end.abort(reason);
        this.#attached.clear();
        this.#settle((waiting) => waiting.reject(reason));
    }
    async #run() {
        const { signal } = this.#end;
        for (let failures = 0; !signal.aborted;) {
            try {
                const answer = await requestOnce(this.#options, this.#environment, signal);
                failures = 0;
                this.#take(answer);
                await this.#hold(answer);
            }
            catch (error) {
                if (signal.aborted)
                    return;
                failures++;
                const known = error instanceof IceServersError ? error : new IceServersError(String(error), { reason: 'internal', temporary: true, cause: error });
                if (!known.temporary || failures >= mostFailures)
                    this.#settle((waiting) => waiting.reject(known));
                this.#report(() => this.#options.onError?.(known));
                await this.#sleep(this.#backoff(known, failures));
            }
        }
    }
    #take(answer) {
        const renewed = this.#answer !== undefined;
        this.#answer = answer;
        this.#forgetClosed();
        for (const [connection, { restart }] of renewed ? this.#attached : []) {
            this.#report(() => {
                connection.setConfiguration({ ...connection.getConfiguration(), iceServers: answer.servers.iceServers });
                if (restart)
                    connection.restartIce();
            });
        }
        this.#settle((waiting) => waiting.resolve(answer.servers));
        if (renewed)
            this.#report(() => this.#options.onRenewal?.(answer.servers));
    }
    #forgetClosed() {
        for (const connection of this.#attached.keys()) {
            if (connection.signalingState === 'closed')
                this.#attached.delete(connection);
        }
    }
    #report(call) {
        try {
            call();
        }
        catch (error) {
            queueMicrotask(() => {
                throw error;
            });
        }
    }
    async #hold({ sent, lifetime }) {
        const due = sent + Math.max(Math.round(lifetime * (1 / 2 + this.#environment.random() / 6)), shortestRenewal);
        for (let left; this.#waiting.length === 0 && (left = due - this.#environment.now()) > 0 && !this.#end.signal.aborted;) {
            await this.#sleep(Math.min(left, longestNap), true);
        }
    }
    #backoff({ temporary, retryAfter }, failures) {
        const longest = temporary ? Math.min(firstBackoff * 2 ** (failures - 1), longestBackoff) : longestBackoff;
        const least = retryAfter === undefined ? longest / 2 : Math.min(retryAfter, longestRetryAfter);
        return least + (this.#environment.random() * longest) / 2;
    }
    #sleep(ms, wakes = false) {
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
            if (wakes)
                this.#wake = awake;
            if (signal.aborted)
                awake();
        });
    }
    #settle(settle) {
        const waiting = this.#waiting;
        this.#waiting = [];
        waiting.forEach(settle);
    }
}
