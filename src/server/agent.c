/*
 * agent.c: what a server contributes to the next configuration: itself, its claims, and whom it accuses.
 *
 * An expelled server may believe in its lease for a while. It is replaced only when this server has seen for more than
 * the length of a lease that it is expelled.
 */
#include "server/server.h"

#define EXPELLED_LEASES 1.25
#define RETURN_LEASES 5.0 /* an expelled server gives the others time to remove it */

void tdm__server_agent_claim(tdm__server_agent *agent, const tdm__server_claim *claim)
{
    if (claim->shard < TDM_SERVER_MAX_SHARDS) agent->claims[claim->shard] = *claim;
}

static void agent_watch_expelled(tdm__server_agent *agent, const tdm__server_config *config,
                                 double now_s)
{
    size_t kept = 0;
    for (size_t i = 0; i < agent->expelled_count; i++) {
        const tdm__server_entry *entry = tdm__server_config_find(config, agent->expelled[i].id);
        if (entry && entry->lease == 0) agent->expelled[kept++] = agent->expelled[i];
    }
    agent->expelled_count = kept;
    for (uint32_t s = 0; s < config->server_count; s++) {
        size_t at = 0;
        if (config->servers[s].lease != 0) continue;
        while (at < kept && agent->expelled[at].id != config->servers[s].id) at++;
        if (at < agent->expelled_count || agent->expelled_count == TDM__SERVER_MAX_SERVERS)
            continue;
        agent->expelled[agent->expelled_count].id = config->servers[s].id;
        agent->expelled[agent->expelled_count++].seen_s = now_s;
    }
}

bool tdm__server_agent_plan(tdm__server_agent *agent, const tdm__server_config *config,
                            const tdm__server_record *records, size_t record_count, double now_s,
                            tdm__server_config *next)
{
    tdm__server_claim claims[TDM_SERVER_MAX_SHARDS];
    uint64_t gone[TDM__SERVER_MAX_SERVERS];
    tdm__server_request request = {
        .self = agent->self, .claims = claims, .accused = agent->accused, .gone = gone};
    agent_watch_expelled(agent, config, now_s);
    for (size_t i = 0; i < agent->expelled_count; i++) {
        double leases = (now_s - agent->expelled[i].seen_s) / agent->lease_s;
        bool is_self = agent->expelled[i].id == agent->self.id;
        if (is_self && leases > RETURN_LEASES) request.returns = true;
        if (!is_self && leases > EXPELLED_LEASES)
            gone[request.gone_count++] = agent->expelled[i].id;
    }
    for (uint32_t s = 0; s < config->group.shards; s++) {
        if (agent->claims[s].epoch != 0) claims[request.claim_count++] = agent->claims[s];
        agent->claims[s].epoch = 0;
    }
    agent->accused = 0;
    return tdm__server_plan(config, records, record_count, &request, next);
}
