/* train_compress.c: says whether the compression of gradients pays (payoff.h). */
#include "base/base.h"
#include "job/job.h"
#include "train/trainer.h"

#include <tandem/text.h>

#include <stdio.h>

static const char *rate_text(double bytes_per_s, char buffer[32])
{
    char bytes[32];
    if (bytes_per_s > 1e15) return "any rate";
    snprintf(buffer, 32, "%s/s", tdm_text_bytes((uint64_t)bytes_per_s, bytes));
    return buffer;
}

/* "matrices (10.6 M numbers) by int8 take 0.21 s, and pay below 900 MB/s" */
static void add_class(tdm_str *out, const tdm_payoff *p, const char *name, uint64_t elements,
                      tdm_payoff_method method)
{
    char count[32], rate[32];
    double even = tdm_payoff_break_even(p, method);
    tdm_str_addf(out, "; %s (%s numbers) by %s take %.3g ms of a step, and ", name,
                 tdm_text_count(elements, count), tdm_payoff_method_name(method),
                 1e3 * tdm_payoff_seconds(p, method, elements));
    if (even > 0)
        tdm_str_addf(out, "pay below %s", rate_text(even, rate));
    else
        tdm_str_addf(out, "never pay with %lld replicas on %d hosts", (long long)p->replicas,
                     p->hosts);
}

/* The link, and what a step sends over it without compression. */
static void add_link(tdm_str *out, const tdm_payoff *p, uint64_t elements)
{
    char rate[32];
    tdm_str_addf(out,
                 "the link between the %d hosts carries %s; a dense all_reduce takes %.3g ms "
                 "of a step as bf16, %.3g ms as f32",
                 p->hosts, rate_text(p->link, rate), 1e3 * tdm_payoff_dense_seconds(p, elements),
                 1e3 * tdm_payoff_seconds(p, TDM_PAYOFF_NONE, elements));
}

static void add_own(tdm_str *out, const tdm_payoff *p, const tdm_payoff_classes *classes)
{
    const tdm_payoff_rate *rate = &p->rates[TDM_PAYOFF_OWN];
    char encode[32], decode[32];
    double dense = tdm_payoff_dense_seconds(p, classes->matrices);
    bool pays = tdm_payoff_seconds(p, TDM_PAYOFF_OWN, classes->matrices) < dense;
    tdm_str_addf(out, "; the codec encodes %s and decodes %s of f32 on a rank",
                 rate_text(sizeof(float) / (rate->encode_s + 1e-15), encode),
                 rate_text(sizeof(float) / (rate->decode_s + 1e-15), decode));
    if (p->hosts == 1) {
        tdm_str_addf(out, "; all ranks are on one host, so this compression only takes time");
        return;
    }
    add_class(out, p, "matrices", classes->matrices, TDM_PAYOFF_OWN);
    tdm_str_addf(out, ": compression %s", pays ? "pays" : "does not pay");
}

static void add_others(tdm_str *out, const tdm_payoff *p, const tdm_payoff_classes *classes)
{
    tdm_payoff_choice choice = tdm_payoff_choose(p, classes);
    for (int m = TDM_PAYOFF_TOPK; m >= TDM_PAYOFF_BF16; m--)
        add_class(out, p, "matrices", classes->matrices, (tdm_payoff_method)m);
    tdm_str_addf(out, ": compression would %s",
                 choice.matrices == TDM_PAYOFF_NONE ? "not pay" : "pay");
}

tdm_status tdm__say_payoff(tdm__trainer *t, tdm_error *err)
{
    bool compresses = tdm_job_compresses(t->job);
    tdm_comm_info info = {.host_count = 1};
    if (t->comm) tdm_comm_info_get(t->comm, &info);
    if (!compresses && (info.host_count == 1 || t->job->sync.kind != TDM_JOB_SYNC_ALL_REDUCE))
        return TDM_OK;
    tdm_payoff p;
    TDM_TRY(tdm_team_measure(t->team, &p, err));
    tdm_payoff_classes classes = tdm_payoff_classes_of(t->job, t->state.graph);
    tdm_str text = TDM_STR_INIT;
    tdm_str_addf(&text, "compression: ");
    if (p.hosts > 1)
        add_link(&text, &p, classes.matrices + classes.small);
    else
        tdm_str_addf(&text, "%lld replicas", (long long)p.replicas);
    if (compresses)
        add_own(&text, &p, &classes);
    else
        add_others(&text, &p, &classes);
    tdm__say(t, TDM_LOG_INFO, "%s", tdm_str_text(&text));
    tdm_str_release(&text);
    return TDM_OK;
}
