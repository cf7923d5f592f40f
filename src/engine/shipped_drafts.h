// Finding the draft that was shipped for a target, where a preset needs one and none is given. The public side is
// include/specextend/drafts.h.
#pragma once
#include "formats/model_file.h"
#include "specextend/drafts.h"
#include "specextend/speculation.h"

namespace sx {

class StartupCache;

DraftTarget draft_target(const ModelFile& target, StartupCache& cache);

// Whether the method drafts with a model or head and none is named. Throws on names that do not exist.
bool lacks_draft(const SpecOptions& options);

// Names the shipped draft that fits in `options`, if one is lacking. Throws, saying what would fit, if there is none;
// and if the one that fits is not the file that was shipped. Preset auto takes a head before a model; where neither
// fits it goes without: with the target as its own draft where `self_pays`, else with the text's own suffixes alone.
void take_shipped_draft(SpecOptions& options, const ModelFile& target, StartupCache& cache, bool self_pays = false);

}  // namespace sx
