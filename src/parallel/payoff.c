/* payoff.c: whether the compression of gradients pays on a link. See payoff.h. */
#include "parallel/payoff.h"

#include <stddef.h>

enum { DENSE_BYTES = 4, HALF_BYTES = 2 };

static const double gain_wanted = 0.05; /* of the time of a dense reduction */

/* The share of a sum, or of gathered payloads, that crosses the link of a host in one direction. */
static double share_sent(const tdm_payoff *p)
{
    return p->hosts > 1 ? (double)(p->hosts - 1) / (double)p->hosts : 0;
}

static double reduced_bytes(const tdm_payoff *p, double bytes)
{
    return 2 * share_sent(p) * bytes;
}

/* The bytes that cross a link for one number of a method. */
static double method_bytes(const tdm_payoff *p, tdm_payoff_method method)
{
    const tdm_payoff_rate *rate = &p->rates[method];
    if (method == TDM_PAYOFF_NONE) return reduced_bytes(p, DENSE_BYTES);
    if (rate->is_factors) return reduced_bytes(p, rate->bytes);
    return share_sent(p) * (double)p->replicas * rate->bytes;
}

/* The seconds of the codec for one number of the gradient. */
static double method_codec_s(const tdm_payoff *p, tdm_payoff_method method)
{
    const tdm_payoff_rate *rate = &p->rates[method];
    double replicas_of_rank = (double)p->replicas / (double)p->ranks;
    if (method == TDM_PAYOFF_NONE) return 0;
    if (rate->is_factors) return replicas_of_rank * rate->encode_s + rate->decode_s;
    return replicas_of_rank * (rate->encode_s + (double)p->hosts * rate->decode_s);
}

static double link_seconds(const tdm_payoff *p, double bytes)
{
    return bytes > 0 ? bytes / p->link : 0;
}

double tdm_payoff_seconds(const tdm_payoff *p, tdm_payoff_method method, uint64_t elements)
{
    return (double)elements *
           (link_seconds(p, method_bytes(p, method)) + method_codec_s(p, method));
}

double tdm_payoff_dense_seconds(const tdm_payoff *p, uint64_t elements)
{
    return (double)elements * link_seconds(p, reduced_bytes(p, HALF_BYTES));
}

double tdm_payoff_break_even(const tdm_payoff *p, tdm_payoff_method method)
{
    double saved = reduced_bytes(p, HALF_BYTES) - method_bytes(p, method);
    double cost = method_codec_s(p, method);
    if (saved <= 0) return 0;
    return cost > 0 ? saved / cost : 1e300;
}

/* Numbers of small tensors are gathered with the payloads. */
static double small_seconds(const tdm_payoff *p, uint64_t elements)
{
    double bytes = share_sent(p) * (double)p->replicas * DENSE_BYTES;
    return (double)elements * link_seconds(p, bytes);
}

tdm_payoff_method tdm_payoff_choose(const tdm_payoff *p, const tdm_payoff_classes *classes)
{
    tdm_payoff_method best = TDM_PAYOFF_NONE;
    uint64_t all = classes->large + classes->small;
    double least = (1 - gain_wanted) * tdm_payoff_seconds(p, TDM_PAYOFF_NONE, all);
    for (int m = TDM_PAYOFF_BF16; m <= TDM_PAYOFF_TOPK; m++) {
        double seconds = tdm_payoff_seconds(p, (tdm_payoff_method)m, classes->large) +
                         small_seconds(p, classes->small);
        if (p->rates[m].bytes <= 0 || seconds >= least) continue;
        least = seconds;
        best = (tdm_payoff_method)m;
    }
    return best;
}

const char *tdm_payoff_method_name(tdm_payoff_method method)
{
    static const char *const names[TDM_PAYOFF_METHODS] = {"none", "bf16", "int8", "topk_sampled",
                                                          "compress"};
    return (int)method >= 0 && method < TDM_PAYOFF_METHODS ? names[method] : "?";
}
