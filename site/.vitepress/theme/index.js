import { h } from 'vue'
import DefaultTheme from 'vitepress/theme'
import dark from '../../../docs/stunner-dark.svg'
import light from '../../../docs/stunner-light.svg'
import './style.css'

const alt = 'A browser behind NAT reaches pods in a cluster through the STUNner gateway'
const picture = () => [['light', light], ['dark', dark]].map(([name, src]) => h('img', { class: ['picture', name], src, alt }))

export default {
  extends: DefaultTheme,
  Layout: () => h(DefaultTheme.Layout, null, { 'home-hero-image': picture }),
}
