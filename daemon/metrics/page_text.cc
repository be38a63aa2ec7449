// What clients chose (names of groups) reaches the page as text only, never as markup.
#include "daemon/metrics/page.h"

namespace terrace {
namespace {

constexpr std::string_view kPage = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Terrace</title>
<meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,">
<style>
 body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5em auto; max-width: 72em; padding: 0 1em;
        color: #1b1f24; background: #fff }
 h1 { font-size: 1.3em } h2 { font-size: 1.05em; margin: 1.6em 0 .4em }
 table { border-collapse: collapse; width: 100% }
 th, td { text-align: right; padding: .15em .7em; border-bottom: 1px solid #d8dde3;
          font-variant-numeric: tabular-nums; white-space: nowrap }
 th:first-child, td:first-child { text-align: left }
 th { font-weight: 600; color: #57606a } code { font-size: .85em }
 svg { width: 100%; height: 9em; background: #f6f8fa } .bad { color: #b3261e; font-weight: 600 }
 .quiet { color: #57606a }
 @media (prefers-color-scheme: dark) {
  body { color: #e6e9ec; background: #16191d } th, .quiet { color: #98a2ad }
  th, td { border-color: #333a42 } svg { background: #1f2429 } .bad { color: #ff8a80 } }
</style></head><body>
<h1>Terrace <span class="quiet" id="version"></span> <select id="domain"></select></h1>
<p><span id="health"></span> <span class="quiet" id="state"></span></p>
<ul id="troubles"></ul>
<p id="totals"></p>
<h2>Tiers</h2><table id="tiers"></table>
<h2>Hit rate, the last hour by minute</h2>
<svg id="rates" viewBox="0 0 600 100" preserveAspectRatio="none" role="img"></svg>
<p class="quiet" id="rates-text"></p>
<h2>Why the rest was missed</h2><table id="causes"></table>
<h2>Groups</h2><table id="groups"></table>
<h2>Prefixes that saved the most for their room</h2><table id="top"></table>
<h2>Prefix tree</h2><p class="quiet" id="surveyed"></p><table id="tree"></table>
<script>
'use strict';
const at = id => document.getElementById(id);
const count = n => Number(n).toLocaleString('en');
const bytes = n => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; ++i) n /= 1024;
  return (i ? n.toFixed(1) : n) + ' ' + units[i];
};
const share = (part, whole) => whole ? (100 * part / whole).toFixed(1) + ' %' : '-';
const seconds = s => s >= 100 ? count(Math.round(s)) + ' s' : s.toFixed(3) + ' s';
// rows: arrays of cells, a cell a text or {text, value, code}; the exact value is kept beside it.
function fill(table, head, rows) {
  const line = (cells, kind) => {
    const tr = document.createElement('tr');
    for (const cell of cells) {
      const td = document.createElement(kind);
      const is_plain = typeof cell !== 'object';
      const inner = !is_plain && cell.code ? td.appendChild(document.createElement('code')) : td;
      inner.textContent = is_plain ? cell : cell.text;
      if (!is_plain && cell.value !== undefined) td.dataset.value = cell.value;
      if (!is_plain && cell.name) td.id = cell.name;
      if (!is_plain && cell.bad) td.className = 'bad';
      if (!is_plain && cell.indent) td.style.paddingLeft = cell.indent + 'em';
      tr.appendChild(td);
    }
    return tr;
  };
  table.replaceChildren(line(head, 'th'), ...rows.map(row => line(row, 'td')));
}
const kTiers = ['hbm', 'dram', 'nvme', 'redis'];
const cell = (value, form, name) => ({text: form(value), value, name});

function tierRows(status) {
  const d = status.domain, rows = [];
  const row = (kind, capacity, used, blocks, read, written, queued, is_healthy) => {
    const hit = d.acquire_blocks_by_tier[kTiers.indexOf(kind)];
    rows.push([kind, capacity === null ? '-' : cell(capacity, bytes, kind + '-capacity'),
      used === null ? '-' : cell(used, bytes, kind + '-used'),
      blocks === null ? '-' : cell(blocks, count, kind + '-blocks'),
      cell(hit, count, kind + '-hit'),
      share(hit, d.acquire_blocks_asked), read === null ? '-' : bytes(read),
      written === null ? '-' : bytes(written), queued === null ? '-' : count(queued),
      {text: is_healthy ? 'ok' : 'OFF', bad: !is_healthy}]);
  };
  for (const t of status.lower_tiers.filter(t => t.kind === 'hbm'))
    row('hbm', t.capacity_bytes, t.used_bytes, t.block_count, t.read_bytes, t.written_bytes,
        t.reads_queued + t.writes_queued, t.is_healthy);
  row('dram', d.dram_capacity_bytes, d.slot_bytes_used, null, null, null, null, true);
  for (const t of status.lower_tiers.filter(t => t.kind !== 'hbm'))
    row(t.kind, t.capacity_bytes, t.used_bytes, t.block_count, t.read_bytes, t.written_bytes,
        t.reads_queued + t.writes_queued, t.is_healthy);
  const r = status.redis;
  if (r) row('redis', null, null, null, r.read_bytes, r.written_bytes, r.queued_blocks, r.is_ready);
  return rows;
}

function drawRates(minutes) {
  const svg = at('rates'), ns = 'http://www.w3.org/2000/svg', step = 600 / minutes.length;
  const most = Math.max(1, ...minutes.map(m => m[0]));
  const bars = minutes.map(([asked, hit], i) => [[asked, '#c8d3de'], [hit, '#2f81f7']].map(
    ([n, colour]) => {
      const bar = document.createElementNS(ns, 'rect');
      const high = 100 * n / most;
      for (const [name, value] of Object.entries({x: i * step, width: step * .9, y: 100 - high,
                                                  height: high, fill: colour}))
        bar.setAttribute(name, value);
      return bar;
    })).flat();
  svg.replaceChildren(...bars);
  const [asked, hit] = minutes.reduce((sum, m) => [sum[0] + m[0], sum[1] + m[1]], [0, 0]);
  const text = at('rates-text');
  text.textContent = `${count(hit)} of ${count(asked)} blocks (${share(hit, asked)}); ` +
    `the highest minute asked ${count(most)}. Grey: asked, blue: hit.`;
  text.dataset.asked = asked;
  text.dataset.hit = hit;
}

function show(answer) {
  const status = answer.status, d = status.domain, choice = at('domain');
  if (choice.options.length !== answer.domains.length)
    choice.replaceChildren(...answer.domains.map(name => new Option(name, name)));
  choice.value = d.name;
  at('version').textContent = status.version;
  at('health').textContent = status.health;
  at('health').className = status.health === 'ok' ? '' : 'bad';
  at('troubles').replaceChildren(...status.troubles.map(text => {
    const li = document.createElement('li');
    li.textContent = text;
    return li;
  }));
  at('state').textContent = `up ${count(Math.floor(status.uptime_ms / 1000))} s, ` +
    `${count(d.session_count)} sessions, ${count(d.lease_count)} leases, ` +
    `${count(d.block_count)} blocks; longest turn ${count(status.turn_us_max)} us`;
  const totals = at('totals');
  totals.textContent =
    `${count(d.acquire_blocks_hit)} of ${count(d.acquire_blocks_asked)} blocks ` +
    `hit (${share(d.acquire_blocks_hit, d.acquire_blocks_asked)}) in ` +
    `${count(d.acquire_requests)} requests; ${seconds(d.prefill_saved_us / 1e6)} of prefill saved`;
  Object.assign(totals.dataset, {asked: d.acquire_blocks_asked, hit: d.acquire_blocks_hit,
                                 requests: d.acquire_requests, savedUs: d.prefill_saved_us});
  fill(at('tiers'), ['tier', 'capacity', 'used', 'blocks', 'hit', 'of asked', 'read', 'written',
                     'queued', ''], tierRows(status));
  drawRates(answer.minutes);
  const missed = Object.values(d.acquire_blocks_missed).reduce((a, b) => a + b, 0);
  fill(at('causes'), ['cause', 'blocks', 'of missed'],
       Object.entries(d.acquire_blocks_missed).map(([cause, n]) =>
         [cause, cell(n, count, 'missed-' + cause), share(n, missed)]));
  fill(at('groups'), ['group', 'blocks', 'asked', 'hit', 'rate', 'prefill saved'],
       status.groups.map(g => [g.name, cell(g.block_count, count),
         cell(g.acquire_blocks_asked, count), cell(g.acquire_blocks_hit, count),
         share(g.acquire_blocks_hit, g.acquire_blocks_asked),
         cell(g.prefill_saved_us / 1e6, seconds)]));
}

function showPrefixes(found) {
  const head = ['prefix, tokens', 'blocks', 'takes', 'hits', 'leases', 'in', 'saved',
                'saved a GiB', 'last block'];
  const row = (run, indent) => [
    {text: `${run.group} ${count(run.first_token)}-${count(run.end_token)}`, indent},
    cell(run.block_count, count), cell(run.byte_count, bytes), cell(run.hit_count, count),
    count(run.lease_count), run.tiers.join(' '), cell(run.saved_s, seconds),
    cell(run.saved_s_per_gib, seconds), {text: run.key, code: true}];
  fill(at('top'), head, found.top.map(run => row(run, 0)));
  fill(at('tree'), head, found.tree.map(run => row(run, .7 + 1.2 * Math.min(run.depth, 12))));
  at('surveyed').textContent = `${count(found.block_count)} blocks in ${count(found.run_count)} ` +
    `chains${found.is_cut ? ', and more that were not looked at' : ''}; at most 64 are shown, ` +
    'those whose trees saved the most.';
  at('surveyed').dataset.blocks = found.block_count;
}

const ask = path => fetch(path + '?domain=' + encodeURIComponent(at('domain').value))
  .then(answer => answer.ok ? answer.json() : Promise.reject(new Error(answer.statusText)));
const told = error => {
  at('health').textContent = 'no answer: ' + error.message;
  at('health').className = 'bad';
};
const look = () => ask('status.json').then(show).catch(told);
const survey = () => ask('prefixes.json').then(showPrefixes).catch(told);
at('domain').onchange = () => { look(); survey(); };
look().then(survey);
setInterval(look, 2000);
setInterval(survey, 30000);
</script></body></html>
)html";

}  // namespace

std::string_view PageText() { return kPage; }

}  // namespace terrace
