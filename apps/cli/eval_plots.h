// Charts as SVG, written by the program: lines, points and stacked bars with axes, a legend, and a table of the same
// numbers. Pure functions; colours and sizes are the style's (eval_assets.h), so that they follow light, dark and
// print.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sx::cli {

struct PlotSeries {
  std::string name;
  size_t colour = 0;                                // its place among the methods, the same in all charts
  std::vector<std::pair<double, double>> points{};  // ascending in x for lines
};

struct PlotLabels {
  std::string title, x{}, y{}, note{};
  bool log_x = false;
  bool diagonal = false;  // a line where x = y
  bool joined = true;     // points are joined by lines
  int digits = 2;         // behind the point in the table
};
// A figure with its table; nothing without points.
std::string plot_xy(const PlotLabels& labels, const std::vector<PlotSeries>& series);

struct StackedBar {
  std::string name;
  std::vector<double> parts;  // as many as there are names
};
std::string plot_bars(const PlotLabels& labels, const std::vector<std::string>& parts,
                      const std::vector<StackedBar>& bars);

// Round numbers from 0 to at least `most`, about `count` of them.
std::vector<double> round_ticks(double most, int count);

}  // namespace sx::cli
