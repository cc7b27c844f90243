import type { components } from './types.gen.js';

/** A parameter that the service refuses, and why. */
export type ParameterError = components['schemas']['ParameterError'];

/** Why there are no ICE servers. */
export class IceServersError extends Error {
  override readonly name = 'IceServersError';
  /** HTTP status of the answer, or 0 if there was none. */
  readonly status: number;
  /**
   * The reason in a word: that of the service, such as `token_expired`, or else `unreachable`, `timeout`, `answer_invalid`, `option_invalid`
   * or `token_failed`, which the client finds itself.
   */
  readonly reason: string;
  /** What is wrong, in a sentence for a person: that of the service, if it answered. */
  readonly detail: string;
  /** False if the same request will not succeed later. */
  readonly temporary: boolean;
  /** Milliseconds that the service asks to wait, from the header Retry-After. */
  readonly retryAfter: number | undefined;
  /** The parameters that the service refuses. */
  readonly parameters: readonly ParameterError[];

  constructor(
    message: string,
    details: { reason: string; temporary: boolean; detail?: string; status?: number; retryAfter?: number | undefined; parameters?: readonly ParameterError[]; cause?: unknown },
  ) {
    super(message, { cause: details.cause });
    this.status = details.status ?? 0;
    this.reason = details.reason;
    this.detail = details.detail ?? message;
    this.temporary = details.temporary;
    this.retryAfter = details.retryAfter;
    this.parameters = details.parameters ?? [];
  }
}
