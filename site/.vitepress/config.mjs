import { cpSync } from 'node:fs'
import path from 'node:path'
import { defineConfig } from 'vitepress'
import { forge as plugin, slug } from './markdown.mjs'
import { nav, sidebar } from './navigation.mjs'
import { searchOptions } from './search.mjs'
import { address, forge, read, root } from './source.mjs'

const version = read('charts/stunner/Chart.yaml').match(/^version: (.*)$/m)[1]

// The files of the pages by their addresses.
const files = new Map()

// Pages about the project and not about its use, which have a word of nearly every question.
const unindexed = ['docs/requirements.md', 'CHANGELOG.md']

// indexed returns the text of a page for the search.
const indexed = (text, env, md) => unindexed.includes(env.relativePath) ? '' : md.render(text, env)

export default defineConfig({
  title: 'STUNner',
  description: 'A WebRTC gateway for Kubernetes: media servers run as ordinary pods, and browsers reach them through TURN.',
  lang: 'en',
  // The address of the site below its host, such as /stunner/.
  base: process.env.SITE_BASE || '/',
  srcDir: root,
  outDir: path.join(root, 'bin/site'),
  cacheDir: path.join(root, '.cache/site'),
  srcExclude: ['{bin,clients,dashboards,e2e,keda,kustomize,openapi,services}/**', '.*/**', 'charts/*/*/**', 'docs/upstream/**', 'README.md', 'AGENTS.md'],
  ignoreDeadLinks: 'localhostLinks',
  rewrites: (file) => {
    const page = address(file) ?? file
    files.set(page, file)
    return page
  },
  head: [['link', { rel: 'icon', type: 'image/svg+xml', href: `${process.env.SITE_BASE || '/'}icon.svg` }]],
  markdown: {
    anchor: { slugify: slug },
    config: (md) => plugin(md, (page) => files.get(page) ?? page),
  },
  vite: {
    publicDir: false,
    // The pages are outside of this folder, so Vite does not find this module from there.
    plugins: [{ name: 'vue', enforce: 'pre', resolveId: (id, _, { ssr }) => ssr && /^vue($|\/)/.test(id) ? { id, external: true } : undefined }],
  },
  buildEnd: ({ outDir }) => cpSync(path.join(root, 'docs/icon.svg'), path.join(outDir, 'icon.svg')),
  themeConfig: {
    logo: '/icon.svg',
    nav: [...nav, { text: version, items: [
      { text: 'Changes', link: '/changelog.md' },
      { text: 'All versions', link: `${forge}/releases` },
    ] }],
    sidebar,
    outline: [2, 3],
    search: { provider: 'local', options: { _render: indexed, miniSearch: { searchOptions } } },
    socialLinks: [{ icon: 'github', link: forge }],
    editLink: { pattern: ({ filePath }) => `https://github.com/stunner-gateway/stunner/edit/main/${filePath}`, text: 'Edit this page' },
  },
})
