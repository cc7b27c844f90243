// Sets the clock of the program ahead by a number of milliseconds, or behind.
export function setAhead(ms) {
  const Right = Date;
  globalThis.Date = class Date extends Right {
    constructor(...parts) {
      if (parts.length > 0) super(...parts);
      else super(Right.now() + ms);
    }
    static now() {
      return Right.now() + ms;
    }
  };
}
