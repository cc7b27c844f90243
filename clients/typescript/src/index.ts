/**
 * ICE servers of the STUNner auth service, renewed before their credentials expire, in browsers and Node.js.
 *
 * @packageDocumentation
 */
export { IceServersError, type ParameterError } from './error.js';
export { type Connection, iceServers, type Options, type RenewedIceServers } from './renewal.js';
export type { IceServer, IceServers, IceServersRequest, RequestOptions } from './request.js';
