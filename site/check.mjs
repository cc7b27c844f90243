// Checks the built site: every link and anchor leads to a page, and the search answers questions of users with one of the first three pages.
import { readFileSync, readdirSync } from 'node:fs'
import path from 'node:path'
import MiniSearch from 'minisearch'
import { searchOptions } from './.vitepress/search.mjs'

const site = path.resolve(process.argv[2])
const files = readdirSync(site, { recursive: true }).map((file) => file.replaceAll('\\', '/'))
const pages = new Map(files.filter((file) => file.endsWith('.html') && file !== '404.html')
  .map((file) => [`/${file}`, readFileSync(path.join(site, file), 'utf8')]))
const ids = new Map([...pages].map(([page, html]) => [page, new Set([...html.matchAll(/\sid="([^"]+)"/g)].map(([, id]) => decode(id)))]))
const problems = []
let links = 0

function decode(text) {
  return text.replaceAll('&amp;', '&').replaceAll('&quot;', '"').replaceAll('&#39;', "'").replaceAll('&lt;', '<').replaceAll('&gt;', '>')
}

const base = process.env.SITE_BASE || '/'
for (const [page, html] of pages) {
  for (const [, href] of html.matchAll(/\shref="([^"]+)"/g)) {
    const url = new URL(decode(href), `http://site${base}${page.slice(1)}`)
    if (url.host !== 'site') continue
    links++
    const file = url.pathname.startsWith(base) ? `/${url.pathname.slice(base.length)}`.replace(/\/$/, '/index.html') : undefined
    if (!file || !files.includes(file.slice(1))) problems.push(`${page} links to ${href}, which does not exist`)
    else if (url.hash.length > 1 && ids.has(file) && !ids.get(file).has(decodeURIComponent(url.hash.slice(1)))) {
      problems.push(`${page} links to ${href}, but ${file} has no such anchor`)
    }
  }
}
if (links === 0) problems.push('no page has a link')

// The index of the search box.
const chunk = files.find((file) => /@localSearchIndexroot\.[^/]*\.js$/.test(file))
const { default: json } = await import(path.join(site, chunk))
const index = MiniSearch.loadJSON(json, { fields: ['title', 'titles', 'text'], storeFields: ['title', 'titles'] })
const questions = JSON.parse(readFileSync(new URL('questions.json', import.meta.url), 'utf8'))
for (const [question, answer] of Object.entries(questions)) {
  const found = index.search(question, searchOptions)
  const first = [...new Set(found.map(({ id }) => `/${id.slice(base.length).split('#')[0]}`))].slice(0, 3)
  if (!first.includes(answer)) problems.push(`search for "${question}": ${answer} is not among the first three pages: ${first.join(' ')}`)
}

for (const problem of problems) console.error(problem)
console.log(`${pages.size} pages, ${links} links, ${Object.keys(questions).length} questions: ${problems.length} problems`)
process.exit(problems.length ? 1 : 0)
