export { IceServersError } from './error.js';
export { iceServers } from './renewal.js';
