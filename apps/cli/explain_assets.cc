#include "cli/explain_assets.h"

namespace sx::cli {

const char* const kExplainStyle = R"css(
:root{color-scheme:light dark;--bg:#fbfbf9;--card:#fff;--fg:#1a211e;--soft:#566059;--line:#d8ddd9;--empty:#eceeec;
--bad:#a3352b;--get:#c05c12;--sink:#4656b0;--recent:#73837c;--bar:#2f9d77;--mean:#1a211e;--hit:#1a211e;
--d1:#e2f4ec;--d2:#cfecdf;--d3:#bce4d1;--d4:#a8dbc4;--d5:#94d2b6;--d6:#80c9a8;--d7:#6dc09b;--d8:#5ab78d}
@media(prefers-color-scheme:dark){:root{--bg:#131715;--card:#1a1f1d;--fg:#e6ebe8;--soft:#a3afa8;--line:#343c38;
--empty:#262d2a;--bad:#ff9d92;--get:#f0a35e;--sink:#9ba9ff;--recent:#8a9c94;--bar:#3fae87;--mean:#e6ebe8;--hit:#fff;
--d1:#18362c;--d2:#193e32;--d3:#1a4738;--d4:#1b503e;--d5:#1b5944;--d6:#1c624b;--d7:#1c6b51;--d8:#1d7458}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1.5rem 1.25rem 4rem;background:var(--bg);color:var(--fg);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.5rem;line-height:1.25;margin:0}h2{font-size:1.1rem;margin:2.5rem 0 .4rem}h3{font-size:1rem;margin:0}
p{margin:.4rem 0}.soft,figcaption,caption{color:var(--soft);font-size:.9rem}caption{text-align:left}
a:focus-visible,[tabindex]:focus-visible,summary:focus-visible,input:focus-visible{outline:2px solid var(--sink);
outline-offset:2px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.2rem,1fr));gap:.6rem;margin:1.2rem 0 0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem}
.tiles dt{color:var(--soft);font-size:.85rem}.tiles dd{margin:0;font-size:1.35rem;font-variant-numeric:tabular-nums}
.tiles small{display:block;color:var(--soft);font-size:.8rem;line-height:1.35}
.two{display:grid;grid-template-columns:minmax(0,1fr) 22rem;gap:1rem;align-items:start}
.card{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.8rem 1rem}
.text{white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.75;margin:0}
.r{color:inherit;text-decoration:none;border-radius:.2rem}
.r:hover,.r.on{outline:2px solid var(--hit);outline-offset:1px}
.d1,.d2,.d3,.d4,.d5,.d6,.d7,.d8{border-radius:.2rem;padding:.1em 0;unicode-bidi:isolate;font-weight:inherit}
.d1{background:var(--d1)}.d2{background:var(--d2)}.d3{background:var(--d3)}.d4{background:var(--d4)}
.d5{background:var(--d5)}.d6{background:var(--d6)}.d7{background:var(--d7)}.d8{background:var(--d8)}
.n::before{content:"\21B5";opacity:.55;font-style:normal}
s{color:var(--bad);text-decoration-thickness:1px;unicode-bidi:isolate}
.text s{display:none;font-size:.85em}.text s+s{margin-left:.3em}.all:checked~.two .text s{display:inline}
.legend{display:flex;flex-wrap:wrap;gap:.3rem .9rem;align-items:center;font-size:.9rem;color:var(--soft);
margin:.2rem 0 .7rem}
.legend .k{display:inline-flex;gap:1px;margin-right:.4rem}.legend .k span{padding:0 .45rem;color:var(--fg)}
.legend i{display:inline-block;width:.9em;height:.9em;border-radius:.15em;margin-right:.4em;vertical-align:-.08em}
.panel{position:sticky;top:1rem;height:26rem;max-height:calc(100vh - 2rem);overflow:auto;font-size:.92rem}
.tree,.tree ul{list-style:none;margin:.3rem 0;padding:0}.tree ul{padding-left:.8rem;border-left:1px solid var(--line)}
.tree li{margin:.15rem 0;overflow-wrap:anywhere}
.tree b,.tree s,.tree q,.tok{display:inline-block;white-space:pre-wrap;padding:.05em .2em;border-radius:.2rem;
margin-right:2px;font-weight:inherit;border:1px solid var(--line)}
.tree q{quotes:none;border-style:dashed}.tree s{border-color:transparent}
figure{margin:.6rem 0 0}figcaption{margin-top:.4rem}
.plot{position:relative;border:1px solid var(--line);border-radius:.4rem;overflow:hidden;
background:var(--card);touch-action:manipulation;cursor:crosshair}
.plot svg{display:block;width:100%;height:100%}.chart{height:11rem;margin-left:1.8rem}.wrap{position:relative}
.y{position:absolute;left:0;width:1.5rem;text-align:right;font-size:.75rem;color:var(--soft);transform:translateY(50%)}
.sum{height:1.4rem;margin-bottom:.35rem}.strip{background:var(--empty)}
path,polyline{vector-effect:non-scaling-stroke}
.bar{fill:var(--bar)}.mean{fill:none;stroke:var(--mean);stroke-width:1.75px}.grid{stroke:var(--line);stroke-width:1px}
.get{fill:var(--get);stroke:var(--get);stroke-width:.6px}.sink{fill:var(--sink);stroke:var(--sink);stroke-width:.6px}
.recent{fill:var(--recent);stroke:var(--recent);stroke-width:.6px}
.end{stroke:var(--fg);stroke-width:1px;stroke-dasharray:3 3}
.h1{opacity:.22}.h2{opacity:.42}.h3{opacity:.62}.h4{opacity:.82}
.cross{position:absolute;border:1.5px solid var(--hit);pointer-events:none;display:none;min-width:3px;min-height:3px}
.ends{display:flex;justify-content:space-between;font-size:.8rem;color:var(--soft)}
.read{min-height:7rem;margin-top:.6rem}.read pre,.chunks li{white-space:pre-wrap;overflow-wrap:anywhere}
.read pre{font:inherit;margin:.3rem 0 0;unicode-bidi:isolate}
.phases{display:flex;height:1.1rem;border-radius:.3rem;overflow:hidden;margin:.5rem 0;background:var(--empty)}
.p0{background:var(--get)}.p1{background:var(--bar)}.p2{background:var(--sink)}.p3{background:var(--recent)}
.p4{background:var(--bad)}.p5{background:var(--soft)}
details{margin:.6rem 0}summary{cursor:pointer}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}
td.t,th.t{text-align:left;min-width:16rem}.chunks{font-size:.9rem}.chunks li{unicode-bidi:isolate;margin:.3rem 0}
.round{padding:.5rem 0;border-top:1px solid var(--line)}.panel .round{border:0;padding:0}
.js{display:none}.scripted .js{display:block}
@media(max-width:56rem){.two{grid-template-columns:1fr}.panel{position:sticky;top:auto;bottom:0;height:40vh;
box-shadow:0 -4px 16px #0003}}
@media print{.panel,.js{display:none}.two{display:block}}
)css";

// Everything shown is already in the page: the script only copies nodes and text, and never builds HTML from strings.
const char* const kExplainScript = R"js(
(function () {
  'use strict';
  var $ = function (id) { return document.getElementById(id); };
  document.documentElement.classList.add('scripted');
  function clamp(x, low, high) { return Math.max(low, Math.min(high, x)); }

  // Rounds: the one under the pointer or with the focus is copied into the panel.
  var links = Array.prototype.slice.call(document.querySelectorAll('.text .r')), panel = $('panel'), shown = -1;
  function show(i) {
    if (i === shown || !links[i]) return;
    if (links[shown]) { links[shown].classList.remove('on'); links[shown].tabIndex = -1; }
    shown = i;
    links[i].classList.add('on');
    links[i].tabIndex = 0;
    var copy = $('r' + (i + 1)).cloneNode(true);
    copy.removeAttribute('id');
    panel.replaceChildren(copy);
  }
  links.forEach(function (link, i) {
    link.tabIndex = i ? -1 : 0;
    link.addEventListener('pointerenter', function () { show(i); });
    link.addEventListener('focus', function () { show(i); });
    link.addEventListener('click', function (event) { event.preventDefault(); show(i); });
    link.addEventListener('keydown', function (event) {
      var to = { ArrowRight: i + 1, ArrowDown: i + 1, ArrowLeft: i - 1, ArrowUp: i - 1, Home: 0,
        End: links.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      links[clamp(to, 0, links.length - 1)].focus();
    });
  });
  if (links.length) show(0);

  // A plot of columns and rows: pointer, touch and arrow keys move a cell, which `tell` describes.
  function probe(plot, columns, rows, tell) {
    var x = 0, y = rows - 1, cross = document.createElement('div');
    cross.className = 'cross';
    plot.tabIndex = 0;
    plot.setAttribute('role', 'application');  // the arrow keys are for it, not for a screen reader
    plot.appendChild(cross);
    function go(toX, toY) {
      x = clamp(toX, 0, columns - 1);
      y = clamp(toY, 0, rows - 1);
      var place = tell(x, y);
      cross.style.cssText = 'display:block;left:' + 100 * place[0] + '%;width:' + 100 * place[1] + '%;top:' +
        100 * y / rows + '%;height:' + 100 / rows + '%';
    }
    function point(event) {
      var box = plot.getBoundingClientRect();
      go(plot.pick((event.clientX - box.left) / box.width), Math.floor((event.clientY - box.top) / box.height * rows));
    }
    plot.addEventListener('pointermove', point);
    plot.addEventListener('click', point);
    plot.addEventListener('focus', function () { go(x, y); });
    plot.addEventListener('keydown', function (event) {
      var step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [-10, 0],
        PageDown: [10, 0], Home: [-columns, 0], End: [columns, 0] }[event.key];
      if (!step) return;
      event.preventDefault();
      go(x + step[0], y + step[1]);
    });
  }

  var chart = $('chart');
  if (chart) {
    var lines = $('table').tBodies[0].rows, n = lines.length;
    chart.pick = function (share) { return Math.floor(share * n); };
    probe(chart, n, 1, function (i) {
      var cell = function (k) { return lines[i].cells[k].textContent; };
      $('told').textContent = 'Round ' + cell(0) + ': ' + cell(4) + ' of ' + cell(3) + ' verified tokens accepted, ' +
        cell(1) + ' tokens made; running mean ' + cell(5) + '.';
      show(i);
      return [i / n, 1 / n];
    });
  }

  var strip = $('strip');
  if (strip) {
    var d = strip.dataset, cells = +d.cells, size = +d.chunk, texts = $('chunks').children, kept = [];
    Array.prototype.forEach.call($('refreshes').tBodies[0].rows, function (row) {
      var ranges = row.cells[4].textContent.split(', ').map(function (range) {
        var ends = range.split('\u2013');
        return [+ends[0], +(ends[1] || ends[0]) + 1];
      });
      kept.push({ number: row.cells[0].textContent, length: +row.cells[2].textContent, ranges: ranges });
    });
    var inside = function (row, first, end) {
      return kept[row].ranges.reduce(function (sum, r) {
        return sum + Math.max(0, Math.min(end, r[1]) - Math.max(first, r[0]));
      }, 0);
    };
    strip.pick = function (share) { return Math.floor(share * cells / size); };
    probe(strip, texts.length, kept.length, function (chunk, row) {
      var first = chunk * size, end = Math.min(cells, first + size), count = inside(row, first, end), times = 0;
      for (var i = 0; i < kept.length; ++i) times += inside(i, first, end) > 0;
      var now = kept[row], state = 'not in the cache';
      if (first >= now.length) state = 'not yet written';
      else if (count) {
        state = count === end - first ? 'in the cache' : count + ' of its tokens in the cache';
        if (first < +d.sink) state += ' (sink)';
        else if (end > now.length - d.recent) state += ' (recent)';
      }
      $('where').textContent = 'Chunk ' + chunk + ', tokens ' + first + '\u2013' + (end - 1) +
        (first >= +d.prompt ? ', generated' : '') + '. Refresh ' + now.number + ': ' + state + '. In the cache after ' +
        times + ' of ' + kept.length + ' refreshes.';
      $('read').textContent = texts[chunk].textContent;
      return [first / cells, (end - first) / cells];
    });
  }
})();
)js";

}  // namespace sx::cli
