// What an engine knows about the time its rounds take, by which drafts are decided: for servers, chats and
// measurements.
//
// Thread safety: only the thread that uses the engine may call these functions.
#pragma once

namespace sx {

class Engine;

// Times one pass of the model while nobody asks the engine anything, as when it was opened; no text, cache or answer
// changes. Call it again and again while no request runs, and stop as soon as there is one: a pass takes 50 ms at most,
// those that take longer are left out. False: there is nothing to measure for now; ask again in a few seconds.
bool measure_when_idle(Engine& engine);

// Of rounds whose time could be told before they ran, drafts and all, since the last call: that time, and what they
// took, in milliseconds.
struct PredictedTime {
  double predicted_ms = 0, measured_ms = 0;
};
PredictedTime take_predicted_time(Engine& engine);

}  // namespace sx
