#include "cli/eval_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "cli/explain_page.h"
#include "cli/put.h"

namespace sx::cli {
namespace {

constexpr double kWidth = 640, kHeight = 320, kLeft = 56, kRight = 16, kTop = 12, kBottom = 44;
constexpr size_t kColours = 8;

// "1500", "0.25": without digits that say nothing.
std::string number(double value) { return fmt::format("{:.4g}", value); }

// Where values lie on an axis.
class Axis {
 public:
  Axis(double least, double most, double from, double to, bool log) : from_(from), to_(to), log_(log && least > 0) {
    least_ = log_ ? std::log(least) : 0, most_ = log_ ? std::log(most) : most;
    if (!(most_ > least_)) most_ = least_ + 1, least_ -= log_ ? 1 : 0;
  }
  double at(double value) const {
    const double v = log_ ? std::log(std::max(value, 1e-9)) : value;
    return from_ + (v - least_) / (most_ - least_) * (to_ - from_);
  }
  bool log() const { return log_; }

 private:
  double from_, to_, least_ = 0, most_ = 1;
  bool log_;
};

// A mark of its own for each method, so that the charts can be read without colours.
void put_mark(std::string& out, size_t colour, double x, double y, const std::string& says) {
  put(out, "<g class=\"mark c{}\"><title>{}</title>", colour % kColours, html_text(says));
  switch (colour % 4) {
    case 0: put(out, "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>", x, y); break;
    case 1: put(out, "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"8\" height=\"8\"/>", x - 4, y - 4); break;
    case 2: put(out, "<path d=\"M{:.1f} {:.1f}l5 9h-10z\"/>", x, y - 5); break;
    default: put(out, "<path d=\"M{:.1f} {:.1f}l5 5l-5 5l-5 -5z\"/>", x, y - 5); break;
  }
  out += "</g>";
}

void put_legend(std::string& out, const std::vector<PlotSeries>& series) {
  out += "<p class=\"legend\">";
  for (const PlotSeries& s : series) {
    if (s.points.empty()) continue;
    put(out, "<span><svg class=\"key\" viewBox=\"0 0 12 12\" aria-hidden=\"true\">");
    put_mark(out, s.colour, 6, 6, s.name);
    put(out, "</svg>{}</span>", html_text(s.name));
  }
  out += "</p>\n";
}

void begin_figure(std::string& out, const PlotLabels& labels) {
  put(out, "<figure><h3>{}</h3>\n", html_text(labels.title));
  if (!labels.note.empty()) put(out, "<p class=\"soft\">{}</p>\n", html_text(labels.note));
}

void begin_svg(std::string& out, const PlotLabels& labels, double height) {
  put(out,
      "<svg class=\"chart\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}; the table below has the numbers\">\n",
      kWidth, height, html_text(labels.title));
}

void put_y_axis(std::string& out, const Axis& y, const std::vector<double>& ticks, const std::string& label) {
  for (const double v : ticks) {
    put(out, "<path class=\"grid\" d=\"M{} {:.1f}H{}\"/>", kLeft, y.at(v), kWidth - kRight);
    put(out, "<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 6, y.at(v) + 4,
        number(v));
  }
  put(out, "<text class=\"label\" transform=\"translate(14 {:.0f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      (kTop + kHeight - kBottom) / 2, html_text(label));
}

// Logarithmic axes have their ticks where the points are, as far as the numbers have room.
std::vector<double> x_ticks(const std::vector<PlotSeries>& series, const Axis& x, double most) {
  if (!x.log()) return round_ticks(most, 6);
  std::set<double> values;
  for (const PlotSeries& s : series)
    for (const auto& point : s.points) values.insert(point.first);
  std::vector<double> ticks;
  for (const double v : values)
    if (ticks.empty() || x.at(v) - x.at(ticks.back()) > 40) ticks.push_back(v);
  return ticks;
}

void put_table(std::string& out, const PlotLabels& labels, const std::vector<PlotSeries>& series) {
  put(out,
      "<details><summary>The numbers</summary><div class=\"scroll\"><table><thead><tr><th scope=\"col\" "
      "class=\"t\">method</th><th scope=\"col\">{}</th><th scope=\"col\">{}</th></tr></thead><tbody>\n",
      html_text(labels.x), html_text(labels.y));
  for (const PlotSeries& s : series)
    for (const auto& [x, y] : s.points)
      put(out, "<tr><th scope=\"row\" class=\"t\">{}</th><td>{}</td><td>{:.{}f}</td></tr>\n", html_text(s.name),
          number(x), y, labels.digits);
  out += "</tbody></table></div></details></figure>\n";
}

}  // namespace

std::vector<double> round_ticks(double most, int count) {
  if (!(most > 0) || !std::isfinite(most)) return {0, 1};
  const double rough = most / std::max(1, count), power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0})
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  std::vector<double> ticks;
  for (int i = 0; ticks.empty() || ticks.back() < most * 0.999; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string plot_xy(const PlotLabels& labels, const std::vector<PlotSeries>& series) {
  double least_x = INFINITY, most_x = 0, most_y = 0;
  for (const PlotSeries& s : series)
    for (const auto& [x, y] : s.points)
      least_x = std::min(least_x, x), most_x = std::max(most_x, x), most_y = std::max(most_y, y);
  if (!std::isfinite(least_x)) return {};
  if (labels.diagonal) most_x = most_y = std::max(most_x, most_y);
  const auto y_ticks = round_ticks(most_y, 5);
  const double x_end = labels.log_x ? most_x : round_ticks(most_x, 6).back();
  const Axis x(least_x, x_end, kLeft + 8, kWidth - kRight - 8, labels.log_x),
      y(0, y_ticks.back(), kHeight - kBottom, kTop, false);
  std::string out;
  begin_figure(out, labels);
  put_legend(out, series);
  begin_svg(out, labels, kHeight);
  put_y_axis(out, y, y_ticks, labels.y);
  for (const double v : x_ticks(series, x, most_x))
    put(out, "<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x.at(v),
        kHeight - kBottom + 18, number(v));
  put(out, "<text class=\"label\" x=\"{:.0f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
      (kLeft + kWidth - kRight) / 2, kHeight - 6, html_text(labels.x));
  if (labels.diagonal)
    put(out, "<path class=\"diagonal\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", x.at(0), y.at(0), x.at(most_x),
        y.at(most_x));
  for (const PlotSeries& s : series) {
    if (labels.joined && s.points.size() > 1) {
      put(out, "<polyline class=\"line c{}\" points=\"", s.colour % kColours);
      for (const auto& point : s.points) put(out, "{:.1f},{:.1f} ", x.at(point.first), y.at(point.second));
      out += "\"/>";
    }
    for (const auto& point : s.points)
      put_mark(out, s.colour, x.at(point.first), y.at(point.second),
               fmt::format("{}: {} {}, {} {}", s.name, labels.x, number(point.first), labels.y, number(point.second)));
    out += "\n";
  }
  out += "</svg>\n";
  put_table(out, labels, series);
  return out;
}

std::string plot_bars(const PlotLabels& labels, const std::vector<std::string>& parts,
                      const std::vector<StackedBar>& bars) {
  double most = 0;
  for (const StackedBar& bar : bars) {
    double sum = 0;
    for (const double part : bar.parts) sum += part;
    most = std::max(most, sum);
  }
  if (!(most > 0)) return {};
  std::string out;
  begin_figure(out, labels);
  out += "<p class=\"legend\">";
  for (size_t i = 0; i < parts.size(); ++i)
    put(out, "<span><i class=\"p{}\"></i>{}</span>", i % kColours, html_text(parts[i]));
  out += "</p>\n<div class=\"bars\">\n";
  for (const StackedBar& bar : bars) {
    double sum = 0;
    for (const double part : bar.parts) sum += part;
    put(out, "<div class=\"bar\"><span class=\"name\">{}</span><span class=\"stack\">", html_text(bar.name));
    for (size_t i = 0; i < bar.parts.size(); ++i)
      if (bar.parts[i] > 0)
        put(out, "<span class=\"p{}\" style=\"width:{:.2f}%\" title=\"{}: {:.2f}\"></span>", i % kColours,
            100 * bar.parts[i] / most, html_text(parts[i]), bar.parts[i]);
    put(out, "</span><span class=\"sum\">{:.{}f}</span></div>\n", sum, labels.digits);
  }
  put(out,
      "</div>\n<details><summary>The numbers: {}</summary><div class=\"scroll\"><table><thead><tr><th scope=\"col\" class=\"t\">method</th>",
      html_text(labels.y));
  for (const std::string& part : parts) put(out, "<th scope=\"col\">{}</th>", html_text(part));
  out += "</tr></thead><tbody>\n";
  for (const StackedBar& bar : bars) {
    put(out, "<tr><th scope=\"row\" class=\"t\">{}</th>", html_text(bar.name));
    for (const double part : bar.parts) put(out, "<td>{:.{}f}</td>", part, labels.digits);
    out += "</tr>\n";
  }
  out += "</tbody></table></div></details></figure>\n";
  return out;
}

}  // namespace sx::cli
