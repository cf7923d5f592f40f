// A stand-in for NCCL on host memory, loaded in its place (SPECEXTEND_NCCL_LIBRARY): ranks are threads of one process,
// and a stream is a thread that sends and receives in order while the caller goes on, as a GPU does. A receive waits
// for its message, however long, until the communicator is aborted. Besides NCCL's functions it has these, which tests
// look up by name.
#pragma once

extern "C" {

// Waits for all that was given to a stream.
void nccl_stand_in_wait(void* stream);
// Once a rank has sent `after` more groups of messages, all others of it are lost. rank: -1, none is.
void nccl_stand_in_silence(int rank, int after);
// Groups of messages that have been lost, that have been received, and communicators that have been aborted.
int nccl_stand_in_lost();
int nccl_stand_in_received();
int nccl_stand_in_aborted();
// Whether ncclCommAbort waits, as NCCL's does while recorded steps refer to the communicator.
void nccl_stand_in_hold_aborts(bool hold);
// What ncclCommGetAsyncError says from now on.
void nccl_stand_in_error(int code);
}
