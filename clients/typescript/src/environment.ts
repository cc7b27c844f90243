/** What the client needs of the browser or Node.js. Tests replace it by virtual time. */
export interface Environment {
  /** Milliseconds since any point of time. They never run backwards. */
  now(): number;
  /** Calls a function after a number of milliseconds, and returns a function that prevents the call. */
  after(ms: number, call: () => void): () => void;
  /** A random number of at least 0 and less than 1. */
  random(): number;
  fetch(url: string, init: RequestInit): Promise<Response>;
}

/** The environment of the program. */
export function standardEnvironment(): Environment {
  return {
    now: elapsed(),
    after(ms, call) {
      const timer = setTimeout(call, ms);
      return () => clearTimeout(timer);
    },
    random: Math.random,
    fetch: (url, init) => fetch(url, init),
  };
}

/**
 * Some browsers stop the monotonic clock while the computer sleeps, and the user may set the other clock at any time. A look at both adds the
 * longer of the two differences, so that time is never too short: credentials may be renewed early, but not late.
 */
function elapsed(): () => number {
  let monotonic = performance.now();
  let wall = Date.now();
  let total = 0;
  return () => {
    const [monotonicNow, wallNow] = [performance.now(), Date.now()];
    total += Math.max(monotonicNow - monotonic, wallNow - wall, 0);
    [monotonic, wall] = [monotonicNow, wallNow];
    return total;
  };
}
