// The navigation is the index of the documentation, docs/README.md: a section of it is a section of the site, and a row of its table is a page.
import path from 'node:path'
import { address, read, resolve } from './source.mjs'

// sections returns the sections of the index with their pages: [{ text, items: [{ text, link, items }] }]. The section of the page that
// is shown is open.
function sections() {
  const index = 'docs/README.md'
  return read(index).split(/^## /m).slice(1)
    .map((section) => ({ text: section.split('\n', 1)[0], items: pages(index, section), collapsed: true }))
    .filter((section) => section.items.length > 0)
}

// pages returns the pages that the rows of a table or the items of a list start with. An index of a folder has its pages as items.
function pages(file, text) {
  const rows = text.matchAll(/^(?:\|(?: [^|[]* \|)? |\d+\. )\[([^\]]+)\]\(([^)#:]+)\)/gm)
  return [...rows].flatMap(([, title, link]) => {
    const target = path.posix.join(path.posix.dirname(file), link)
    if (!address(target)) return []
    const folder = target !== file && target.endsWith('/README.md') && target.startsWith('docs/')
    const below = folder ? pages(target, read(target)).filter((page) => page.link.startsWith(resolve(file, link).replace(/index\.md$/, ''))) : []
    return [{ text: title, link: resolve(file, link), ...(below.length && { items: below, collapsed: true }) }]
  })
}

export const sidebar = sections()

// The top of a page has the first page of each section.
export const nav = sidebar.map(({ text, items }) => ({ text, link: items[0].link }))
