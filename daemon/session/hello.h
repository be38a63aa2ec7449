// Hello: what a client says first. A message that is none means another program is at the socket.
//
// THREADING: the store thread.
#pragma once

#include "daemon/session/frame_codec.h"
#include "terrace/error.h"
#include "terrace/protocol.h"

namespace terrace {

Error ReadHello(const MessageBody& body, protocol::HelloRequest* hello);

}  // namespace terrace
