/*
 * alone.h: the transport of a world of one rank.
 */
#ifndef TANDEM_TRANSPORT_ALONE_H
#define TANDEM_TRANSPORT_ALONE_H

#include "transport/transport.h"

tdm_status tdm__alone_create(tdm__transport **out, tdm_error *err);

#endif
