// Options of the search, for the box of the site and for the check of its answers.
export const searchOptions = {
  fuzzy: 0.2,
  prefix: true,
  boost: { title: 4, text: 2, titles: 1 },
  // Readers who search have a problem or a task: pages that solve one come before pages that measure or decide something.
  // The site stores the text of this function, so it uses nothing from outside.
  boostDocument: (id) => /troubleshooting/.test(id) ? 2 : /guides|runbooks/.test(id) ? 1.3 : /performance|adr|contribut/.test(id) ? 0.5 : 1,
}
