// The report as one file that needs no other: curves over context and batch as inline SVG, and everything as tables.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tools/bench/format.h"
#include "tools/bench/report.h"

namespace ellm::bench {
namespace {

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // (what is on the axis, tokens per second)
};
struct Chart {
  std::string title, axis;
  std::vector<Line> lines;
};

constexpr const char* kColours[] = {"#0b6e99", "#d9730d", "#448361", "#ad1a72", "#9065b0", "#787774"};
constexpr double kWidth = 520, kHeight = 260, kLeft = 60, kRight = 500, kTop = 20, kBottom = 220, kLabelWidth = 40;

/// Both axes logarithmic; 0 stands where 1 would.
struct Scale {
  double least, most, from, to;
  double operator()(double v) const {
    const double span = std::log(most / least);
    return from + (span > 0 ? std::log(std::max(v, least) / least) / span : 0.5) * (to - from);
  }
};

std::string svg(const Chart& chart) {
  double x0 = 1e18, x1 = 0, y0 = 1e18, y1 = 0;
  std::set<double> ticks;
  for (const Line& line : chart.lines) {
    for (const auto& [x, y] : line.points) {
      x0 = std::min(x0, std::max(x, 1.0)), x1 = std::max(x1, std::max(x, 1.0)), y0 = std::min(y0, y),
      y1 = std::max(y1, y);
      ticks.insert(x);
    }
  }
  const Scale across{x0, x1, kLeft, kRight}, up{y0 / 1.2, y1 * 1.2, kBottom, kTop};
  std::string out = format("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\"><title>", kWidth, kHeight) +
                    escaped(chart.title) + "</title>\n";
  double free_from = 0;  // numbers must not stand on each other
  for (const double x : ticks) {
    const double at = across(x);
    out += format("<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\" class=\"grid\"/>\n", at, at, kTop, kBottom);
    if (at < free_from) continue;
    out += format("<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.0f</text>\n", at, kBottom + 15, x);
    free_from = at + kLabelWidth;
  }
  for (int i = 0; i <= 4; ++i) {
    const double y = up.least * std::pow(up.most / up.least, i / 4.0);
    out += format(
        "<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" class=\"grid\"/><text x=\"%.0f\" y=\"%.1f\" "
        "text-anchor=\"end\">%.3g</text>\n",
        kLeft, kRight, up(y), up(y), kLeft - 5, up(y) + 4, y);
  }
  out += format("<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">", (kLeft + kRight) / 2, kHeight - 8) +
         escaped(chart.axis) + "</text>\n";
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    std::string points;
    for (const auto& [x, y] : chart.lines[i].points) {
      points += format("%.1f,%.1f ", across(x), up(y));
      out += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>", across(x), up(y), colour);
    }
    out += "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"" + std::string(colour) + "\" points=\"" + points +
           "\"/>\n";
    out += format("<text x=\"%.0f\" y=\"%.0f\" style=\"fill:%s\">", kLeft + 8, kTop + 14 + 14 * static_cast<double>(i),
                  colour) +
           escaped(chart.lines[i].name) + "</text>\n";
  }
  return out + "</svg>\n";
}

/// A line for ours of each KV type and one for the peer's best of each.
class Lines {
 public:
  explicit Lines(const Report& report) : report_(report) {}
  /// `which`: of several lines the one that the row belongs to.
  void add(const Row& row, double x, const std::string& which = "") {
    points_["eLLM, KV " + shm::name_of(row.kv) + which][x] = row.tokens_per_second(row.ours);
    if (const PeerResult* best = row.best_peer())
      points_[report_.peer + ", its best" + which][x] = row.tokens_per_second(best->series);
  }
  /// Nothing where there is no curve.
  std::string draw(const std::string& title, const std::string& axis) const {
    Chart chart{title, axis, {}};
    for (const auto& [name, points] : points_)
      if (points.size() > 1) chart.lines.push_back({name, {points.begin(), points.end()}});
    return chart.lines.empty() ? ""
                               : "<figure><figcaption>" + escaped(title) + "</figcaption>" + svg(chart) + "</figure>\n";
  }

 private:
  const Report& report_;
  std::map<std::string, std::map<double, double>> points_;
};

std::string charts(const Report& r, const std::string& model) {
  Lines prefill(r), depth(r), batch(r), whole(r);
  for (const Row& row : r.rows) {
    if (row.model != model || row.ours.empty()) continue;
    const Work& w = row.work;
    const std::string before = w.depth == 0 ? "" : format(", %u tokens before", w.depth);
    if (w.kind == Kind::prefill && w.batch == 1) prefill.add(row, w.longest());
    if (w.kind == Kind::decode && w.batch == 1) depth.add(row, w.depth);
    if (w.kind == Kind::decode) batch.add(row, w.batch, before);
    if (w.kind == Kind::end_to_end) whole.add(row, w.batch, before);
  }
  return prefill.draw("Prefill, tokens/s", "context in tokens") +
         depth.draw("Decode, tokens/s", "tokens in the context") +
         batch.draw("Decode, tokens/s of all sequences", "sequences") +
         whole.draw("End to end, generated tokens/s", "sequences");
}

std::string cell(const std::string& text) { return "<td>" + escaped(text) + "</td>"; }

std::string rows_html(const Report& r) {
  std::string out =
      "<table><tr><th>model</th><th>work</th><th>KV</th><th>tokens/s</th><th>low … high</th><th>of bandwidth</th>"
      "<th>of peak</th><th>peer</th><th>ratio</th><th>price/M out</th><th>peer's</th></tr>\n";
  for (const Row& row : r.rows) {
    out += "<tr>" + cell(row.model) + cell(row.work.name()) + cell(shm::name_of(row.kv));
    if (!row.skipped.empty()) {
      out += "<td colspan=\"8\">" + escaped(row.skipped) + "</td></tr>\n";
      continue;
    }
    const Bound bound = CostModel::bound(row.cost, r.limits, row.kv);
    const double seconds = row.ours.median(), tokens = static_cast<double>(row.work.tokens());
    const PeerResult* best = row.best_peer();
    out +=
        cell(format("%.1f", tokens / seconds)) +
        cell(format("%.1f … %.1f", tokens / row.ours.most(), tokens / row.ours.least())) +
        cell(format("%.2f", bound.memory / seconds)) + cell(format("%.2f", bound.compute / seconds)) +
        cell(best ? format("%.1f %s", row.tokens_per_second(best->series), best->variant.c_str()) : "") +
        cell(row.ratio() ? format("%.2f", *row.ratio()) : "") +
        cell(r.price ? format("%.3f", token_price(row.work, seconds, *r.price).output) : "") +
        cell(r.peer_price && best ? format("%.3f", token_price(row.work, best->series.median(), *r.peer_price).output)
                                  : "") +
        "</tr>\n";
  }
  return out + "</table>\n";
}

constexpr const char* kHead =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>ellm bench</title><style>"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:.2em .6em;text-align:right;border-bottom:1px solid #ddd}"
    "td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}figure{display:inline-block;width:520px;margin:0 1em 1em 0}"
    "svg text{font-size:11px;fill:#555}.grid{stroke:#ddd}.warning{color:#b00}pre{font-size:13px}</style></head><body>\n";

}  // namespace

std::string to_html(const Report& r) {
  std::string out = kHead + std::string("<h1>ellm bench</h1>\n<pre>") + escaped(limits_text(r)) + "</pre>\n";
  out += "<p>Tokens before the measured ones: " + escaped(r.fill) + ". Medians of " + std::to_string(r.repetitions) +
         " repetitions.";
  if (!r.peer.empty()) out += " Beside " + escaped(r.peer) + ": " + escaped(r.peer_conditions) + ".";
  out += "</p>\n";
  for (const std::string& w : r.warnings) out += "<p class=\"warning\">" + escaped(w) + "</p>\n";
  for (const ModelInfo& m : r.models) {
    out += "<h2>" + escaped(m.label) + "</h2>\n<p>" + escaped(m.weight_types) +
           format(", %.0f MB", static_cast<double>(m.file_bytes) * 1e-6);
    if (!m.load.empty())
      out += format("; ready in %.2f s, %.2f × copying the file", m.load.median(), m.load.median() / m.copy.median());
    out += "</p>\n" + charts(r, m.label);
  }
  return out + "<h2>All figures</h2>\n" + rows_html(r) + "</body></html>\n";
}

}  // namespace ellm::bench
