export class IceServersError extends Error {
    name = 'IceServersError';
    status;
    reason;
    detail;
    temporary;
    retryAfter;
    parameters;
    constructor(message, details) {
        super(message, { cause: details.cause });
        this.status = details.status ?? 0;
        this.reason = details.reason;
        this.detail = details.detail ?? message;
        this.temporary = details.temporary;
        this.retryAfter = details.retryAfter;
        this.parameters = details.parameters ?? [];
    }
}
