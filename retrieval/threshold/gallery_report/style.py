"""Style sheet of the report, for light and dark mode, print and phones."""

from retrieval.svg import STYLE as CHARTS

STYLE = (
    """
:root { color-scheme: light dark; --back: #fff; --text: #1a202c; --soft: #4a5568; --line: #cbd5e0; --box: #f1f5f9;
  --a: #2b6cb0; --b: #c05621; --c3: #c53030; }
@media (prefers-color-scheme: dark) { :root { --back: #0b1220; --text: #e8edf4; --soft: #a8b5c7; --line: #3a475c;
  --box: #172033; --a: #63b3ed; --b: #f6ad55; --c3: #fc8181; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 62rem;
  margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .6rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .4rem; }
p, li { max-width: 46rem; overflow-wrap: anywhere; } a { color: var(--a); } figcaption, .soft { color: var(--soft);
  font-size: .92rem; }
.status { border-left: 5px solid var(--b); background: var(--box); padding: .4rem 1rem; }
.certified { border-color: #2f855a; } .warning { border-left: 5px solid var(--b); padding-left: .8rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1.2rem; }
figure { margin: 0; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .95rem; } td, th { padding: .3rem 1rem .3rem 0; text-align: right;
  font-weight: 400;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
td:first-child, th:first-child { text-align: left; } thead th { color: var(--soft); vertical-align: bottom; }
tr.chosen { font-weight: 600; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr)); gap: 1rem; }
.card { border: 1px solid var(--line); border-radius: 10px; padding: .6rem; overflow-wrap: anywhere;
  font-size: .9rem; }
.card div { display: flex; gap: .4rem; margin-bottom: .4rem; } .card img { width: calc(50% - .2rem); aspect-ratio: 1;
  object-fit: cover;
  border-radius: 6px; background: var(--box); }
summary { min-height: 44px; line-height: 44px; cursor: pointer; }
"""
    + CHARTS
)
