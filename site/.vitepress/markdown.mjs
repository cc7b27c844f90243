// Markdown of the forge on the site: the same links, the same anchors, and drawings that follow the colours of the page.
import path from 'node:path'
import { read, resolve } from './source.mjs'

// slug returns the anchor of a heading as the forge does.
export const slug = (heading) => heading.toLowerCase().replace(/[^\p{L}\p{N}_ -]/gu, '').replaceAll(' ', '-')


// forge is a plugin of markdown-it. original returns the file of a rewritten page.
export function forge(md, original) {
  md.core.ruler.push('forge', (state) => {
    const file = original(state.env.relativePath)
    for (const [i, token] of state.tokens.entries()) {
      for (const child of token.children ?? []) {
        const href = child.type === 'link_open' && child.attrGet('href')
        if (href && !/^([a-z]+:|#)/.test(href)) child.attrSet('href', resolve(file, href))
      }
      const picture = token.children?.length === 1 && token.children[0].type === 'image' ? token.children[0] : undefined
      if (picture?.attrGet('src').endsWith('.svg')) {
        token.children = []
        token.type = 'html_block'
        token.content = drawing(path.posix.join(path.posix.dirname(file), picture.attrGet('src')), picture.content)
        state.tokens[i - 1].hidden = state.tokens[i + 1].hidden = true
      }
    }
  })
}

// drawing returns an SVG as a part of the page. Its own style is for the forge; the style of the site has the same classes.
function drawing(file, text) {
  const svg = read(file).replace(/<style>.*?<\/style>/s, '').replaceAll(/<!--.*?-->/gs, '')
  return `<figure class="drawing" role="img" aria-label="${text.replaceAll('"', '&quot;')}" v-pre>${svg}</figure>\n`
}
