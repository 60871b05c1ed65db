"""The style sheet of the page of a plan."""

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif;
  --taken: #17804a; --other: #8a8a8a; --line: #8886; --warning: #b86e00; --tint: #f5a62322; }
@media (prefers-color-scheme: dark) { :root { --taken: #35c27c; --other: #9a9a9a;
  --warning: #f5a623; } }
body { margin: 1.5em auto; max-width: 90em; padding: 0 1em; overflow-wrap: anywhere; }
h1, h1 + p { margin-bottom: 0; }
h1 ~ p { margin-top: .3em; }
.headline { display: grid; grid-template-columns: repeat(auto-fit, minmax(15em, 1fr)); gap: .8em; }
.headline > div { border: 1px solid var(--line); border-radius: 6px; padding: .6em .9em; }
.headline .large { font-size: 190%; font-weight: 600; line-height: 1.3; }
.warning { border-left: 5px solid var(--warning); background: var(--tint); padding: .6em .9em; }
.warning strong { color: var(--warning); }
table { border-collapse: collapse; font-size: 88%; width: 100%; margin: 1em 0; }
th, td { text-align: left; padding: .2em .4em; border-bottom: 1px solid var(--line);
  vertical-align: top; }
.why { padding-left: 1.2em; opacity: .8; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td.whole { overflow-wrap: normal; }
tr.taken { font-weight: 600; }
.legend span { display: inline-block; width: 1.6em; height: .8em; margin: 0 .4em 0 1em; }
.legend span:first-child { margin-left: 0; }
.row { border-bottom: 1px solid var(--line); padding: .4em 0; }
summary { cursor: pointer; }
summary .name, div > .name { font-weight: 600; }
.bar { display: grid; grid-template-columns: minmax(8em, 2fr) minmax(0, 3fr); gap: .8em;
  align-items: center; }
.bar .value { font-variant-numeric: tabular-nums; }
.fill { height: .9em; min-width: 3px; border-radius: 2px; background: var(--taken); }
.other .fill, .legend .other { background: var(--other); }
.legend .taken { background: var(--taken); }
@media (max-width: 1100px) {
  thead { display: none; }
  tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(9em, 1fr)); gap: .2em 1em;
    border-bottom: 1px solid var(--line); padding: .5em 0; }
  td, td.number { display: block; border: 0; padding: 0; text-align: left; white-space: normal;
    overflow-wrap: anywhere; }
  td:empty { display: none; }
  td::before { content: attr(data-name); display: block; font-size: 85%; font-weight: 400;
    opacity: .7; }
}
@media (max-width: 700px) { .bar { grid-template-columns: 1fr; gap: 0; margin-bottom: .3em; } }
"""
