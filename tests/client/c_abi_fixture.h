// What a test holds of ellm.h, freed at its end.
#pragma once
#include <ellm.h>

#include "tests/client/client_fixture.h"

namespace ellm::client {

class CAbi : public ClientTest {
 protected:
  ~CAbi() override {
    ellm_reply_free(reply_);
    ellm_stream_free(stream_);
    ellm_request_free(request_);
    ellm_client_free(client_);
  }
  void connect() {
    ellm_connect_options options = ELLM_CONNECT_OPTIONS;
    options.socket_path = path_.c_str();
    ASSERT_EQ(ellm_connect(&options, &client_), ELLM_OK) << ellm_error_message();
    ASSERT_EQ(ellm_request_new(&request_), ELLM_OK);
  }

  ellm_client* client_ = nullptr;
  ellm_request* request_ = nullptr;
  ellm_stream* stream_ = nullptr;
  ellm_reply* reply_ = nullptr;
};

}  // namespace ellm::client
