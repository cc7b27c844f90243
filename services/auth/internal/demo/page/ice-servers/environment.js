export function standardEnvironment() {
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
function elapsed() {
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
