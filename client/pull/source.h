// What `ellm pull` was asked for, as addresses: a URL, or a file of a hub (hf:OWNER/REPO/FILE). Pure; any thread.
#pragma once
#include <string>
#include <vector>

namespace ellm::pull {

/// The files of one model: a single one, or all parts of a split one.
struct Source {
  std::string name;               // of the model: the file's name without ".gguf" and the part's number
  std::vector<std::string> urls;  // one per part, in order
  bool hub = false;               // the hub's own: its token is sent there, its checksums are believed
};

/// "http://…", "https://…", "hf:…", or any other scheme (which parse_source refuses by name).
bool is_remote(const std::string& argument);

/// `hub`: its address, such as https://huggingface.co. A page of the hub (…/blob/…) means the file that it shows.
/// `name` replaces the one in the address unless empty. Throws PullError.
Source parse_source(const std::string& argument, const std::string& hub, const std::string& name);

/// Without user, password, query and fragment, which may hold secrets: for messages and notes.
std::string public_address(const std::string& url);

}  // namespace ellm::pull
