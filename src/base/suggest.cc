// The search for the known word nearest to a misspelt one.
#include <specextend/suggest.h>

#include <algorithm>
#include <vector>

namespace sx {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), last(b.size() + 1),
      row(b.size() + 1);  // of the first i - 2, i - 1 and i letters of a
  for (size_t j = 0; j <= b.size(); ++j) row[j] = int(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = int(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string nearest_word(std::string_view word, std::span<const std::string> known) {
  constexpr size_t kLongest = 64;  // of a flag or a preset; the table above grows with it
  if (word.size() > kLongest) return {};
  const size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  std::string nearest;
  int least = std::min(3, int(letters) / 3) + 1;
  for (const std::string& candidate : known) {
    const int distance = edit_distance(word, candidate);
    if (distance < least) least = distance, nearest = candidate;
  }
  return nearest;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> known) {
  const std::string nearest = nearest_word(word, known);
  return nearest.empty() ? nearest : "; did you mean " + nearest + "?";
}

}  // namespace sx
