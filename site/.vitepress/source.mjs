// Which Markdown files of the repository are pages of the site, and under which addresses.
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

export const root = fileURLToPath(new URL('../..', import.meta.url))
export const forge = 'https://github.com/stunner-gateway/stunner'

// Files outside of docs that are pages.
const others = {
  'site/index.md': 'index.md',
  'CHANGELOG.md': 'changelog.md',
  'CONTRIBUTING.md': 'contributing.md',
  'SECURITY.md': 'security.md',
  'charts/stunner/README.md': 'charts/stunner.md',
  'charts/stunner-crds/README.md': 'charts/stunner-crds.md',
}

// address returns the page of a file, relative to the root of the site, or undefined if the file is no page.
export function address(file) {
  if (file in others) return others[file]
  // Reports to other projects are not for readers of the documentation.
  if (!file.startsWith('docs/') || file.startsWith('docs/upstream/') || !file.endsWith('.md')) return undefined
  if (file === 'docs/README.md') return 'contents.md'
  return file.slice('docs/'.length).replace(/README\.md$/, 'index.md')
}

// resolve returns the URL of a relative link or picture in a file: a page of the site, or else the file on the forge.
export function resolve(file, link) {
  const [target, anchor] = link.split('#')
  const hash = anchor ? `#${anchor}` : ''
  const name = target ? path.posix.join(path.posix.dirname(file), target).replace(/\/$/, '') : file
  if (!existsSync(path.join(root, name))) throw new Error(`${file} links to ${link}: correct the link, ${name} does not exist`)
  const page = address(name) ?? address(`${name}/README.md`)
  return page && (address(name) || existsSync(path.join(root, name, 'README.md'))) ? `/${page}${hash}` : `${forge}/blob/main/${name}${hash}`
}

// read returns the text of a file of the repository.
export const read = (file) => readFileSync(path.join(root, file), 'utf8')
