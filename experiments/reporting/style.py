"""How pages look, on a screen of 1,100 pixels, a narrow one and on paper, in colour or without."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """\
:root { color-scheme: light; }
body { margin: 0; background: #fff; color: #1c1c1c;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", Arial, sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 24px 30px 60px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 36px 0 8px; padding-top: 10px; border-top: 2px solid #1c1c1c; }
p { margin: 8px 0; max-width: 76ch; overflow-wrap: anywhere; }
.subtitle { color: #555; margin-top: 0; max-width: 110ch; }
.small, figcaption { font-size: 13px; color: #444; max-width: 100ch; }
.note { border-left: 4px solid #1c1c1c; background: #f4f4f4; padding: 8px 12px; }
.points { padding-left: 20px; max-width: 88ch; }
.points li { margin: 5px 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 14px 0; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 4px 0 6px; }
th, td { text-align: right; vertical-align: top; padding: 3px 9px; border-bottom: 1px solid #ddd; }
thead th { vertical-align: bottom; border-bottom: 1.5px solid #1c1c1c; font-weight: 600; }
tbody th { font-weight: 400; white-space: nowrap; }
th:first-child, td:first-child, .words { text-align: left; }
td.words { overflow-wrap: anywhere; }
.unit { display: block; white-space: nowrap; font-weight: 400; color: #555; }
.absent { color: #777; }
.total th, .total td { border-top: 1.5px solid #1c1c1c; border-bottom: none; font-weight: 600; }
h3 { font-size: 13.5px; margin: 14px 0 6px; }
.listing { columns: 300px 3; column-gap: 24px; margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 12px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
figure { margin: 18px 0; }
figure svg { display: block; width: 100%; max-width: 920px; height: auto; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
@media (max-width: 700px) { main { padding: 14px; } }
@media print {
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  h2 { break-after: avoid; }
  figure, tr, .note { break-inside: avoid; }
  .wide { overflow: visible; }
  table { font-size: 8.5pt; }
  th, td { padding: 2px 5px; }
}
"""
