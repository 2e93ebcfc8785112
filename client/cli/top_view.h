// What `ellm top` shows, as text and as JSON: made of two states of the totals and the rows of a status. Pure.
#pragma once
#include <boost/json/object.hpp>
#include <string>

#include "client/messages.h"
#include "client/stats_page.h"

namespace ellm::cli {

/// What happened between two states, per second.
struct Rates {
  double prefill = 0, decode = 0;  // tokens computed and generated
  double requests = 0;             // served
  double batch = 0;                // rows of generated tokens in a step
  double cached = 0;               // share of the prompt tokens that were found in the cache, 0 … 1
};
Rates rates_between(const client::Totals& before, const client::Totals& now);

/// The totals that a status has, for daemons without a stats page.
client::Totals totals_of(const client::StatusReply& status, double now_s);

std::string top_text(const client::StatusReply& status, const client::Totals& totals, const Rates& rates);
boost::json::object top_json(const client::StatusReply& status, const client::Totals& totals, const Rates& rates);

}  // namespace ellm::cli
