/* train_compress.c: says whether the compression of gradients pays (payoff.h), and chooses it (compress.auto). */
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

/* "large tensors (10.6 M numbers) by int8 take 0.21 s, and pay below 900 MB/s" */
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
    double dense = tdm_payoff_dense_seconds(p, classes->large);
    bool pays = tdm_payoff_seconds(p, TDM_PAYOFF_OWN, classes->large) < dense;
    tdm_str_addf(out, "; the codec encodes %s and decodes %s of f32 on a rank",
                 rate_text(sizeof(float) / (rate->encode_s + 1e-15), encode),
                 rate_text(sizeof(float) / (rate->decode_s + 1e-15), decode));
    if (p->hosts == 1) {
        tdm_str_addf(out, "; all ranks are on one host, so this compression only takes time");
        return;
    }
    add_class(out, p, "large tensors", classes->large, TDM_PAYOFF_OWN);
    tdm_str_addf(out, ": compression %s", pays ? "pays" : "does not pay");
}

static void add_others(tdm_str *out, const tdm_payoff *p, const tdm_payoff_classes *classes)
{
    for (int m = TDM_PAYOFF_TOPK; m >= TDM_PAYOFF_BF16; m--)
        add_class(out, p, "large tensors", classes->large, (tdm_payoff_method)m);
}

static tdm_status say_payoff(tdm__trainer *t, const tdm_payoff *p, tdm_payoff_method choice,
                             tdm_error *err)
{
    const tdm_job *job = t->job;
    tdm_payoff_classes classes = tdm_payoff_classes_of(job, t->state.graph);
    tdm_str text = TDM_STR_INIT;
    tdm_str_addf(&text, "compression: ");
    if (p->hosts > 1)
        add_link(&text, p, classes.large + classes.small);
    else
        tdm_str_addf(&text, "%lld replicas", (long long)p->replicas);
    if (tdm_job_compresses(job) && !job->compress.automatic)
        add_own(&text, p, &classes);
    else if (p->hosts > 1)
        add_others(&text, p, &classes);
    if (job->compress.automatic)
        tdm_str_addf(&text, ": compress.auto chooses %s", tdm_payoff_method_name(choice));
    else if (!tdm_job_compresses(job))
        tdm_str_addf(&text, ": compression would %s",
                     choice == TDM_PAYOFF_NONE ? "not pay" : "pay");
    bool complete = tdm_str_ok(&text);
    if (complete) tdm__say(t, TDM_LOG_INFO, "%s", tdm_str_text(&text));
    tdm_str_release(&text);
    return complete ? TDM_OK : tdm_fail_oom(err, "in training");
}

/* The choice that any rank knows: the state of a run has it, and new members get it from the others. */
static tdm_status choice_agree(tdm__trainer *t, tdm_error *err)
{
    double known = t->state.choice;
    if (t->comm)
        TDM_TRY(tdm_group_all_reduce(tdm_comm_world(t->comm), NULL, &known, 1, TDM_DTYPE_F64,
                                     TDM_REDUCE_MAX, err));
    if (known < 0 || known > TDM_PAYOFF_TOPK + 1 || known != (double)(int)known)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "the state has the compression %g, which is none of this version; resume "
                        "with the version that wrote it",
                        known);
    t->state.choice = known;
    return TDM_OK;
}

tdm_status tdm__prepare_compression(tdm__trainer *t, bool says, tdm_error *err)
{
    const tdm_job *job = t->job;
    tdm_comm_info info = {.host_count = 1};
    if (t->comm) tdm_comm_info_get(t->comm, &info);
    if (job->compress.automatic) TDM_TRY(choice_agree(t, err));
    bool chooses = job->compress.automatic && t->state.choice == 0;
    bool compares = info.host_count > 1 && job->sync.kind == TDM_JOB_SYNC_ALL_REDUCE;
    if (chooses || (says && (tdm_job_compresses(job) || compares) && !job->compress.automatic)) {
        tdm_payoff p;
        TDM_TRY(tdm_team_measure(t->team, &p, err));
        tdm_payoff_classes classes = tdm_payoff_classes_of(job, t->state.graph);
        tdm_payoff_method choice = tdm_payoff_choose(&p, &classes);
        if (chooses) t->state.choice = (double)choice + 1;
        TDM_TRY(say_payoff(t, &p, choice, err));
    }
    if (!job->compress.automatic) return TDM_OK;
    return tdm_team_compress(t->team, (tdm_payoff_method)((int)t->state.choice - 1), err);
}
