// Hello: what a client says first. A message that is none means another program is at the socket.
//
// THREADING: the store thread.
#pragma once

#include "daemon/session/frame_codec.h"
#include "daemon/session/request_frame.h"
#include "daemon/session/transport.h"
#include "terrace/error.h"
#include "terrace/protocol.h"

namespace terrace {

Error ReadHello(const MessageBody& body, protocol::HelloRequest* hello);
// Refuses a reader whose library would map the arena to write, and fail at each lease.
Error CheckRole(const RequestContext& context, const protocol::HelloRequest& hello);
// What travels with the answer.
Transport::Attach AttachOf(SessionRole role, const protocol::HelloRequest& hello);

}  // namespace terrace
