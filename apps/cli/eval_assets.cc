#include "cli/eval_assets.h"

namespace sx::cli {

const char* const kEvalStyle = R"css(
:root{color-scheme:light dark;--bg:#fbfbf9;--card:#fff;--fg:#1a211e;--soft:#566059;--line:#d8ddd9;--bad:#a3352b;
--c0:#5b6660;--c1:#1c7d5c;--c2:#b3500b;--c3:#3f4fae;--c4:#97286f;--c5:#7a6400;--c6:#0f7c92;--c7:#7b4db3}
@media(prefers-color-scheme:dark){:root{--bg:#131715;--card:#1a1f1d;--fg:#e6ebe8;--soft:#a3afa8;--line:#343c38;
--bad:#ff9d92;--c0:#a9b5ae;--c1:#4cc39a;--c2:#f0a35e;--c3:#9ba9ff;--c4:#f08cc8;--c5:#d9c04a;--c6:#5cc8de;--c7:#c7a1f2}}
@media print{:root{color-scheme:light;--bg:#fff;--card:#fff;--fg:#000;--soft:#444;--line:#bbb;--bad:#900;--c0:#555;
--c1:#1c7d5c;--c2:#b3500b;--c3:#3f4fae;--c4:#97286f;--c5:#7a6400;--c6:#0f7c92;--c7:#7b4db3}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1.5rem 1.25rem 4rem;background:var(--bg);color:var(--fg);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.5rem;line-height:1.25;margin:0}h2{font-size:1.15rem;margin:2.5rem 0 .4rem}h3{font-size:1rem;margin:0}
p{margin:.4rem 0}.soft,caption{color:var(--soft);font-size:.9rem}caption{text-align:left;padding-bottom:.3rem}
.bad{color:var(--bad);font-weight:600}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.2rem,1fr));gap:.6rem;margin:1.2rem 0 0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem}
.tiles dt{color:var(--soft);font-size:.85rem}.tiles dd{margin:0;font-size:1.35rem;font-variant-numeric:tabular-nums}
.tiles small{display:block;color:var(--soft);font-size:.8rem;line-height:1.35;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(30rem,100%),1fr));gap:1rem}
figure{margin:.6rem 0 0;background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.8rem 1rem;
break-inside:avoid;min-width:0}
.chart{display:block;width:100%;height:auto}.grid{stroke:var(--line);stroke-width:1px}
.tick,.label{fill:var(--soft);font-size:12px}.line{fill:none;stroke-width:2px}
.diagonal{stroke:var(--soft);stroke-width:1px;stroke-dasharray:4 4}
.legend{display:flex;flex-wrap:wrap;gap:.2rem .9rem;font-size:.88rem;color:var(--soft)}
.key{width:.9em;height:.9em;margin-right:.35em;vertical-align:-.05em}
.legend i{display:inline-block;width:.9em;height:.9em;border-radius:.15em;margin-right:.35em;vertical-align:-.08em}
.mark.c0{fill:var(--c0)}.mark.c1{fill:var(--c1)}.mark.c2{fill:var(--c2)}.mark.c3{fill:var(--c3)}
.mark.c4{fill:var(--c4)}.mark.c5{fill:var(--c5)}.mark.c6{fill:var(--c6)}.mark.c7{fill:var(--c7)}
.line.c0{stroke:var(--c0)}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}
.line.c4{stroke:var(--c4)}.line.c5{stroke:var(--c5)}.line.c6{stroke:var(--c6)}.line.c7{stroke:var(--c7)}
.p0{background:var(--c0)}.p1{background:var(--c1)}.p2{background:var(--c2)}.p3{background:var(--c3)}
.p4{background:var(--c4)}.p5{background:var(--c5)}.p6{background:var(--c6)}.p7{background:var(--c7)}
.bar{display:grid;grid-template-columns:minmax(6rem,14rem) 1fr 4rem;gap:.5rem;align-items:center;margin:.25rem 0;
font-size:.88rem}
.bar .name{overflow-wrap:anywhere}.bar .sum{text-align:right;font-variant-numeric:tabular-nums}
.stack{display:flex;height:1.1rem;border-radius:.2rem;overflow:hidden;
print-color-adjust:exact;-webkit-print-color-adjust:exact}
details{margin:.6rem 0}summary{cursor:pointer}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid var(--line);vertical-align:top;font-weight:inherit}
thead th{font-weight:600}td.t,th.t{text-align:left;min-width:7rem;overflow-wrap:anywhere}
summary:focus-visible{outline:2px solid var(--c3);outline-offset:2px}
@media(max-width:40rem){body{padding:1rem .75rem 3rem}.bar{grid-template-columns:1fr 4rem}.bar .name{grid-column:1/-1}
th,td{padding:.2rem .4rem}}
@media print{body{max-width:none;padding:0;font-size:11pt}.scroll{overflow:visible}table{font-size:8pt}
th,td{padding:.1rem .3rem}.charts{grid-template-columns:1fr 1fr}i,.mark,.line{print-color-adjust:exact;
-webkit-print-color-adjust:exact}}
)css";

}  // namespace sx::cli
