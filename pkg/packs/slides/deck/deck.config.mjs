// Configuration of Marp for one deck. Beside it lies settings.json:
//
//   themes    style sheets that a deck may name
//   autofit   style sheet that keeps wide content on its slide
//   marker    what stands for diagram n, followed by n and ";", until it is drawn;
//             empty: diagrams stay code
//   report    file that is told what the deck holds
import fs from 'node:fs'

const settings = JSON.parse(fs.readFileSync(new URL('./settings.json', import.meta.url), 'utf8'))

/** What Marp found in the deck; written anew by every rendering. */
let report

/** Puts a picture in the place of every mermaid fence. */
function diagrams(md) {
  const { fence } = md.renderer.rules
  md.renderer.rules.fence = (tokens, i, ...rest) => {
    const { info, content } = tokens[i]
    if (!settings.marker || info.trim().split(/\s/)[0].toLowerCase() !== 'mermaid') return fence(tokens, i, ...rest)
    const n = report.diagrams.push(content) - 1
    return `<p><img class="mermaid-svg" alt="mermaid diagram" src="${settings.marker}${n};" /></p>\n`
  }
}

/** Notes raw HTML that Marp shows as text for safety. */
function scripts(md) {
  for (const rule of ['html_block', 'html_inline']) {
    const plain = md.renderer.rules[rule]
    md.renderer.rules[rule] = (tokens, i, ...rest) => {
      if (/<script\b/i.test(tokens[i].content)) report.scripts = true
      return plain(tokens, i, ...rest)
    }
  }
}

// An arrow function: Marp takes any other for a class.
const engine = ({ marp }) => {
  for (const css of settings.themes) marp.themeSet.add(css)
  marp.use(diagrams).use(scripts)

  const renderStyle = marp.renderStyle.bind(marp)
  marp.renderStyle = (theme) => {
    // Before the deck's own styles, which may overrule it.
    marp.lastStyles = [settings.autofit, ...(marp.lastStyles ?? [])]
    return renderStyle(theme)
  }

  const render = marp.render.bind(marp)
  marp.render = (...args) => {
    report = { diagrams: [], scripts: false }
    const result = render(...args)
    report.theme = marp.lastGlobalDirectives?.theme ?? 'default'
    report.notes = result.comments.map((notes) => notes.join('\n\n'))
    fs.writeFileSync(settings.report, JSON.stringify(report))
    return result
  }
  return marp
}

export default {
  engine,
  lang: 'en',
  // Without this, emoji are pictures that only the network has.
  options: { emoji: { unicode: false } },
}
