#!lua name=quotient_fleet_6
-- The store's side of a tenant's budget: what Tenant::ask and Tenant::set of the crate quotient-fleet do, in the same order and with
-- the same numbers. A test holds the two together. Protocol and proof: the header of that crate.
--
-- KEYS  1 tenant: hash; limit and sums   2 processes: hash, process -> record   3 ends: sorted set, process by the end of its lease
--       4 store: hash; since when the server remembers. Not in a cluster
-- The first three have one hash tag. Times and CPU times in us, rates in millionths of a CPU.

local ENDED_MAX = 64
local FLOOR_LIFE = 3600000000
local VERSION_AHEAD = 86400000000
local REFILL_MAX = 86400000000
local DEMAND_MAX = 10000000000
local POOL_PARTS = 4
local LARGE_PARTS = 16
local RENEWALS_MAX = 16
local OFFERED_PARTS = 16
local FLOORS_DIVISOR = 20
local BUCKETS = 128
local MEMORY_SETTLES = 30000000
local POLICY_LIFE = 1000000
-- How often memory begins anew while limits may be evicted.
local REMEMBER_AGAIN = 10000000
local LIFE_LOOK = 100000
local SURE = 900000
-- The largest capacity that a limit can have: more CPU time is nobody's lease, and in nobody's pool.
local CAPACITY_MAX = 1203600000000
local LEASE_MAX = 120000000
local PROCESSES_MAX = 100000
-- The longest that a store is quiet: what is granted of the longest lease lasts so long.
local QUIET_MAX = 75000000
-- Versions are moments: the end of the year 2099.
local VERSION_MAX = 4102444800000000

-- While a library is loaded there is no `math` yet.
local function floor(number)
  return math.floor(number)
end

local function max(one, other)
  if other > one then
    return other
  end
  return one
end

local function min(one, other)
  if other < one then
    return other
  end
  return one
end

-- Which life of the server's data this is: of which run, and under which name its history goes on. That name is another one once the server was
-- a replica, so that its data may be an older state that was restored, and never again one of before. It is another one, too, when the backlog for
-- replicas that are gone is freed, an hour after the last: then the life goes on, if it is sure that nothing else happened. Nobody can have been
-- a replica within SURE and have had a backlog freed since: that takes a second at least.
-- Asked ten times a second at most, and when the library is loaded.
local life, life_at, life_run, life_history

local function server_life(clock)
  if not life_at or clock - life_at > LIFE_LOOK or clock < life_at then
    local run = redis.call('INFO', 'server'):match('run_id:(%w+)') or 'unknown'
    local of = redis.call('INFO', 'replication')
    local history = of:match('master_replid:(%w+)') or ''
    local freed = (of:match('master_replid2:(%w+)') or ''):match('^0*$') and of:match('role:master')
    local sure = life_at and clock >= life_at and clock - life_at < SURE and run == life_run
    if not life or not (run == life_run and history == life_history or sure and freed) then
      life = run .. '/' .. history
    end
    life_at, life_run, life_history = clock, run, history
  end
  return life
end

-- When the server began, by its clock: in a cluster each node remembers since then.
local began

local function server_began(clock)
  if not began then
    local uptime = redis.call('INFO', 'server'):match('uptime_in_seconds:(%d+)')
    began = clock - (tonumber(uptime) or 0) * 1000000
  end
  return began
end

-- Whether the server may evict keys without expiry, such as limits: asked once a second at most.
local evicts, evicts_at

local function server_evicts(clock)
  if not evicts_at or clock - evicts_at > POLICY_LIFE or clock < evicts_at then
    evicts = redis.call('INFO', 'memory'):match('maxmemory_policy:allkeys') ~= nil
    evicts_at = clock
  end
  return evicts
end

local function text(number)
  return string.format('%.0f', number)
end

local function bucket(demand)
  if demand < 16 then
    return 1
  end
  local mantissa, exponent = math.frexp(demand)
  return (exponent - 5) * 4 + floor((mantissa * 2 - 1) * 4) + 2
end

local function add_demand(state, demand, sign)
  demand = min(demand, DEMAND_MAX)
  local index = bucket(demand)
  local counts, sums = state.counts, state.sums
  counts[index] = max(0, (counts[index] or 0) + sign)
  sums[index] = max(0, (sums[index] or 0) + sign * demand)
  if counts[index] == 0 then
    counts[index] = nil
    sums[index] = nil
  end
  state.total = max(0, state.total + sign)
end

local function share_of(state, demand, rate)
  local left, wanting = rate, state.total
  for index = 1, BUCKETS do
    local count = state.counts[index]
    if count then
      local sum = state.sums[index]
      if left * count < sum * wanting then
        return min(floor(left / wanting), demand)
      end
      left = max(0, left - sum)
      wanting = wanting - count
    end
  end
  return demand + floor(floor(left / 2) / max(1, state.total))
end

local function capacity(state)
  if state.version == 0 then
    return 0
  end
  return state.burst + floor(state.quota * state.lease / 1000000)
end

-- How long what is granted lasts.
local function lasts(lease)
  return floor(lease / 8) * 5
end

local function cap(state)
  local most = capacity(state)
  local owed = most > 0 and floor(state.quota * state.lease / 1000000) or 0
  local room = max(most - state.held, -owed)
  if state.pool > room then
    state.lost = state.lost + state.pool - room
    state.pool = room
  end
  state.pool = max(state.pool, -owed)
end

local function refill(state, till)
  local from = min(max(state.seen, state.quiet), till)
  local passed = min(till - from, REFILL_MAX)
  local earned = state.quota * passed + state.fraction
  local whole = floor(earned / 1000000)
  state.fraction = floor(max(0, earned - whole * 1000000))
  state.pool = state.pool + whole
  state.seen = till
  cap(state)
end

local FIELDS = { 'format', 'version', 'quota', 'burst', 'processes', 'lease', 'life', 'seen', 'quiet', 'pool', 'fraction', 'held',
  'used', 'floors', 'lost', 'demands', 'entries', 'chosen' }

local NUMBERS = { 'version', 'quota', 'burst', 'processes', 'lease', 'seen', 'quiet', 'pool', 'fraction', 'held', 'used', 'floors',
  'lost', 'entries' }

local function sane(limit)
  return (limit.quota == 0 or (limit.quota >= 1000 and limit.quota <= 10000000000)) and limit.burst >= 0
    and limit.burst <= 3600000000 and limit.processes >= 1 and limit.processes <= PROCESSES_MAX and limit.lease >= 100000
    and limit.lease <= LEASE_MAX
end

local function broken(key, what)
  return redis.error_reply('FLEETBROKEN ' .. what .. ' of ' .. key .. ' is not what was written; set the limit anew (quotient fleet set)')
end

-- A list of numbers, none of which is below zero; nil if it is none.
local function numbers_of(packed)
  local ok, list = pcall(cmsgpack.unpack, packed)
  if not ok or type(list) ~= 'table' then
    return nil
  end
  for index = 1, #list do
    local number = list[index]
    if type(number) ~= 'number' or not (number >= 0 and number <= 9007199254740991) then
      return nil
    end
  end
  return list
end

-- Returns what is there; or nil, the error, and whether setting a limit mends it.
local function read_state(key)
  local values = redis.pcall('HMGET', key, unpack(FIELDS))
  if values.err then
    return nil, broken(key, 'the type'), true
  end
  local state = {}
  for index, name in ipairs(FIELDS) do
    state[name] = values[index]
  end
  if state.format and state.format ~= '1' then
    return nil, redis.error_reply('FLEETFORMAT the tenant is kept in format ' .. state.format)
  end
  -- Nothing there is a new tenant; a part of it missing or no number is somebody else's doing, and must not read as "no limit".
  for _, name in ipairs(NUMBERS) do
    local number = tonumber(state[name] or (not state.format and 0))
    if not number or number ~= number or (number < 0 and name ~= 'pool') or math.abs(number) > 9007199254740991 then
      return nil, broken(key, name), true
    end
    state[name] = number
  end
  if state.format and not sane(state) then
    return nil, broken(key, 'the limit'), true
  end
  -- Both would leave the tenant on its floor until then, and nobody would know why.
  if state.quiet > state.seen + QUIET_MAX then
    return nil, broken(key, 'quiet'), true
  end
  -- Neither is reached by leases, of which a limit that was lowered may leave two kinds.
  if math.abs(state.pool) > 2 * CAPACITY_MAX then
    return nil, broken(key, 'pool'), true
  end
  if state.held > 2 * CAPACITY_MAX * max(1, state.entries) then
    return nil, broken(key, 'held'), true
  end
  if state.version > VERSION_MAX then
    return nil, broken(key, 'version'), true
  end
  if state.fraction >= 1000000 then
    return nil, broken(key, 'fraction'), true
  end
  if state.floors > min(state.entries, PROCESSES_MAX) then
    return nil, broken(key, 'floors'), true
  end
  state.counts, state.sums, state.total = {}, {}, 0
  if state.demands and state.demands ~= '' then
    local list = numbers_of(state.demands)
    if not list or #list % 3 ~= 0 then
      return nil, broken(key, 'demands'), true
    end
    for index = 1, #list, 3 do
      if list[index] < 1 or list[index] > BUCKETS or list[index] ~= floor(list[index]) then
        return nil, broken(key, 'demands'), true
      end
      state.counts[list[index]] = list[index + 1]
      state.sums[list[index]] = list[index + 2]
      state.total = state.total + list[index + 1]
    end
  end
  if state.total > state.entries then
    return nil, broken(key, 'demands'), true
  end
  return state
end

local function write_state(key, state)
  local list = {}
  for index = 1, BUCKETS do
    if state.counts[index] then
      list[#list + 1] = index
      list[#list + 1] = state.counts[index]
      list[#list + 1] = state.sums[index]
    end
  end
  redis.call('HSET', key, 'format', '1', 'version', text(state.version), 'quota', text(state.quota), 'burst', text(state.burst),
    'processes', text(state.processes), 'lease', text(state.lease), 'life', state.life, 'seen', text(state.seen),
    'quiet', text(state.quiet), 'pool', text(state.pool), 'fraction', text(state.fraction), 'held', text(state.held),
    'used', text(state.used), 'floors', text(state.floors), 'lost', text(state.lost), 'demands', cmsgpack.pack(list),
    'entries', text(state.entries), 'chosen', state.chosen or '')
end

-- A record: sequence, used, held, backed, demand, live, ends, floor, amount, share, renew.
local function read_entry(keys, process)
  local record = redis.call('HGET', keys[2], process)
  if not record then
    return nil
  end
  local e = numbers_of(record)
  if not e or #e ~= 11 then
    error(broken(keys[2], 'a record'))
  end
  return { sequence = e[1], used = e[2], held = e[3], backed = e[4], demand = e[5], live = e[6] == 1, ends = e[7], floor = e[8] == 1,
    amount = e[9], share = e[10], renew = e[11] }
end

local function write_entry(keys, process, e)
  redis.call('HSET', keys[2], process, cmsgpack.pack({ e.sequence, e.used, e.held, e.backed, e.demand, e.live and 1 or 0, e.ends,
    e.floor and 1 or 0, e.amount, e.share, e.renew }))
  redis.call('ZADD', keys[3], text(e.ends), process)
end

local function end_leases(keys, state, now)
  for _ = 1, ENDED_MAX do
    -- One by one: a lease that ends makes room for its floor's end, which may be over, too.
    local process = redis.call('ZRANGEBYSCORE', keys[3], '-inf', text(now), 'LIMIT', 0, 1)[1]
    if not process then
      return
    end
    local e = read_entry(keys, process)
    if not e then
      redis.call('ZREM', keys[3], process)
    else
      refill(state, max(e.ends, state.seen))
      if e.live then
        state.held = max(0, state.held - e.held)
        add_demand(state, e.demand, -1)
        e.live, e.ends = false, e.ends + FLOOR_LIFE
        write_entry(keys, process, e)
      else
        if e.floor then
          state.floors = max(0, state.floors - 1)
        end
        redis.call('ZREM', keys[3], process)
        redis.call('HDEL', keys[2], process)
        state.entries = max(0, state.entries - 1)
      end
    end
  end
end

local function follow(keys, state, clock, run, lease)
  -- Two of the three keys may be gone without the first: evicted, or deleted by somebody. What they held is forgotten, too.
  -- So may they be of another type.
  local whole = redis.pcall('ZCARD', keys[3]) == state.entries and redis.pcall('HLEN', keys[2]) == state.entries
  if state.life ~= run or clock + lease < state.seen or not whole then
    local longest = lease
    if state.version > 0 then
      longest = max(lease, state.lease)
    end
    redis.call('DEL', keys[2], keys[3])
    state.life, state.seen, state.quiet = run, clock, clock + lasts(longest)
    state.pool, state.fraction, state.held, state.floors, state.entries = 0, 0, 0, 0, 0
    state.counts, state.sums, state.total = {}, {}, 0
  end
  local now = max(clock, state.seen)
  end_leases(keys, state, now)
  refill(state, now)
  return now
end

local function adopt(state, limit, now)
  if state.version == 0 then
    state.quiet = max(state.quiet, now + lasts(limit.lease))
    state.pool = 0
  end
  state.version, state.quota, state.burst = limit.version, limit.quota, limit.burst
  state.processes, state.lease = limit.processes, limit.lease
  cap(state)
end

-- When a process that now holds so much is to ask again: before refills are cut off because it has not said what it used.
local function renewal(state, holds)
  local latest, most = floor(state.lease / 8) * 3, capacity(state)
  if holds < floor(most / LARGE_PARTS) then
    return latest
  end
  local room = max(0, most - state.pool - state.held)
  return min(max(floor(room * 1000000 / state.quota), floor(state.lease / RENEWALS_MAX)), latest)
end

local function answer(kind, state, amount, duration, share, has_floor, renew)
  return { kind, amount, duration, share, has_floor and 1 or 0, text(state.version), text(state.quota), state.burst,
    state.processes, state.lease, renew or 0 }
end

-- The clock, and the life: the server's own; a test gives both.
local function clock_of(args, from)
  if args[from] then
    return tonumber(args[from]), args[from + 1]
  end
  local time = redis.call('TIME')
  local clock = tonumber(time[1]) * 1000000 + tonumber(time[2])
  return clock, server_life(clock)
end

-- Since when the server remembers all that it was told. Begins anew in each life, when the key is lost, when the clock went back, and again and
-- again while the server may evict limits: it has settled only after that has ended.
local function since_of(key, clock, run)
  local found = redis.call('HMGET', key, 'life', 'since')
  local since = tonumber(found[2] or '')
  local evicted = since and clock - since > REMEMBER_AGAIN and server_evicts(clock)
  if found[1] ~= run or not since or since > clock or evicted then
    since = clock
    redis.call('HSET', key, 'life', run, 'since', text(since))
  end
  return since
end

-- For how long a limit that is not here may have been forgotten.
local function unsure_for(key, clock, run)
  local since = key and since_of(key, clock, run) or server_began(clock)
  if server_evicts(clock) then
    return MEMORY_SETTLES
  end
  if since == 0 then
    return 0
  end
  return max(0, since + MEMORY_SETTLES - clock)
end

-- ARGV: process, sequence, used, left, demand, then the known limit: version (0: none), quota (0: none), burst, processes, lease; horizon
local function ask(keys, args)
  local process = args[1]
  local number = {}
  for index = 2, 11 do
    local value = tonumber(args[index])
    if not value or value < 0 or value ~= floor(value) or value > 9007199254740991 then
      return redis.error_reply('FLEETARGUMENT argument ' .. index .. ' is no number in range')
    end
    number[index] = value
  end
  local sequence, used, left, demand, horizon = number[2], number[3], number[4], number[5], number[11]
  local known = { version = number[6], quota = number[7], burst = number[8], processes = number[9], lease = number[10] }
  local state, problem = read_state(keys[1])
  if not state then
    return problem
  end
  local clock, run = clock_of(args, 12)
  if left > 2 * CAPACITY_MAX then
    return redis.error_reply('FLEETARGUMENT argument 4 is more than anybody is granted')
  end
  if demand == 0 and left > 0 then
    -- Off the books, and kept all the same: that would be granted twice.
    return redis.error_reply('FLEETARGUMENT argument 4 is not 0: who wants nothing keeps nothing')
  end
  local fresh = state.version == 0
  if fresh and known.version == 0 then
    -- What processes hold is still there: there was a limit. Those who know it are reminded by another memory, once: then the second key is gone.
    if redis.pcall('ZCARD', keys[3]) ~= 0 or redis.pcall('HLEN', keys[2]) ~= 0 then
      if keys[4] and redis.call('DEL', keys[2]) > 0 then
        redis.call('HSET', keys[4], 'life', run, 'since', text(clock))
      end
      return redis.error_reply('FLEETBROKEN the limit of ' .. keys[1] .. ' is gone, and leases of it are not; set it anew (quotient fleet set)')
    end
    local wait = unsure_for(keys[4], clock, run)
    return answer(wait > 0 and 4 or 2, state, 0, wait, 0, false)
  end
  local lease = known.version > 0 and known.lease or state.lease
  local now = follow(keys, state, clock, run, lease)
  if known.version > state.version and known.version <= now + VERSION_AHEAD and sane(known) then
    if state.version > 0 and state.chosen == run then
      -- Somebody chose this one since the store has forgotten that one, of a clock that was ahead.
      state.version = known.version + 1
    else
      adopt(state, known, now)
    end
  end
  if state.version == 0 then
    if known.version > now + VERSION_AHEAD then
      return redis.error_reply('FLEETBROKEN the limit that is known of ' .. keys[1] .. ' is of a time to come; set it anew')
    end
    local wait = unsure_for(keys[4], clock, run)
    return answer(wait > 0 and 4 or 2, state, 0, wait, 0, false)
  end
  if state.quota == 0 then
    write_state(keys[1], state)
    return answer(2, state, 0, 0, 0, false)
  end
  local e = read_entry(keys, process)
  if e and sequence <= e.sequence then
    write_state(keys[1], state)
    if sequence < e.sequence or not e.live or now < state.quiet then
      return answer(3, state, 0, 0, 0, false)
    end
    return answer(0, state, e.amount, max(0, e.ends - now), e.share, e.floor, e.renew)
  end
  -- It keeps no more than it was known to hold; or, of whom nothing is known, than anybody is granted.
  left = min(left, e and e.held or capacity(state))
  -- What the process held goes off the books, and what it neither used nor keeps back into the pool.
  local has_floor, backed = false, 0
  if e then
    local spent = max(0, used - e.used)
    state.used = state.used + spent
    has_floor = e.floor
    if e.live then
      state.held = max(0, state.held - e.held)
      add_demand(state, e.demand, -1)
      state.pool = state.pool + max(0, e.backed - (spent + left))
      backed = min(e.backed, left)
    end
  end
  -- It leaves: neither lease nor floor from now on. Remembered for a while, so that what comes late is known as such.
  if demand == 0 and horizon == 0 then
    if e then
      state.floors = max(0, state.floors - (has_floor and 1 or 0))
      write_entry(keys, process, { sequence = sequence, used = used, held = 0, backed = 0, demand = 0, live = false,
        ends = now + lasts(state.lease), floor = false, amount = 0, share = 0, renew = 0 })
      cap(state)
    end
    write_state(keys[1], state)
    return answer(0, state, 0, 0, 0, false)
  end
  if not has_floor and state.floors < state.processes then
    state.floors = state.floors + 1
    has_floor = true
  end
  if demand > 0 then
    add_demand(state, demand, 1)
    state.held = state.held + left
  end
  cap(state)
  local amount, share = 0, 0
  local quiet = now < state.quiet
  if not quiet and demand > 0 then
    local wish = min(demand, DEMAND_MAX)
    local saved = max(0, state.pool)
    share = share_of(state, wish, state.quota + floor(saved * 1000000 / floor(state.lease / POOL_PARTS)))
    share = min(share, max(wish, floor(state.quota / OFFERED_PARTS)))
    local wanted = floor(share * min(horizon, lasts(state.lease)) / 1000000)
    amount = min(max(0, wanted - left), saved)
    state.pool = state.pool - amount
  end
  local live = demand > 0
  state.held = state.held + amount
  local renew = renewal(state, left + amount)
  if not e then
    state.entries = state.entries + 1
  end
  write_entry(keys, process, { sequence = sequence, used = used, held = live and left + amount or 0, backed = backed + amount,
    demand = demand, live = live, ends = now + (live and lasts(state.lease) or FLOOR_LIFE), floor = has_floor, amount = amount,
    share = share, renew = renew })
  write_state(keys[1], state)
  if quiet then
    return answer(1, state, 0, state.quiet - now, 0, has_floor)
  end
  return answer(0, state, amount, lasts(state.lease), share, has_floor, renew)
end

-- Whether all records make sense, and the sums are theirs. O(processes): for who sets a limit, which mends them.
local function records_are_sane(keys, state)
  local held, floors, total = 0, 0, 0
  local processes = redis.pcall('ZRANGEBYSCORE', keys[3], '-inf', '+inf')
  if processes.err then
    return false
  end
  for _, process in ipairs(processes) do
    local ok, e = pcall(read_entry, keys, process)
    if not ok or not e then
      return false
    end
    held, total = held + (e.live and e.held or 0), total + (e.live and 1 or 0)
    floors = floors + (e.floor and 1 or 0)
  end
  return held == state.held and floors == state.floors and total == state.total
end

-- ARGV: quota (0: no limit), burst, processes, lease. Returns the version.
local function set(keys, args)
  local limit = { quota = tonumber(args[1]), burst = tonumber(args[2]), processes = tonumber(args[3]), lease = tonumber(args[4]) }
  if not (limit.quota and limit.burst and limit.processes and limit.lease and sane(limit)) then
    return redis.error_reply('FLEETARGUMENT the limit is out of range')
  end
  local state, problem, mends = read_state(keys[1])
  local longest = limit.lease
  if mends or (state and not records_are_sane(keys, state)) then
    -- As if the store had forgotten. How long the leases are that it granted cannot be told any more.
    redis.call('DEL', keys[1], keys[2], keys[3])
    state, problem = read_state(keys[1])
    longest = LEASE_MAX
  end
  if not state then
    return problem
  end
  local clock, run = clock_of(args, 5)
  local now = follow(keys, state, clock, run, longest)
  state.chosen = run
  limit.version = state.version > 0 and max(now, state.version + 1) or now
  adopt(state, limit, now)
  write_state(keys[1], state)
  return text(limit.version)
end

-- Returns limit and sums as they are: version, quota, burst, processes, lease, seen, quiet, pool, held, used, floors, leases, lost.
local function get(keys)
  local state, problem = read_state(keys[1])
  if not state then
    return problem
  end
  local values = {}
  for index, name in ipairs({ 'version', 'quota', 'burst', 'processes', 'lease', 'seen', 'quiet', 'pool', 'held', 'used', 'floors',
    'total', 'lost' }) do
    values[index] = text(state[name])
  end
  return values
end

-- KEYS: store. Returns what is another text once limits may have been forgotten.
local function memory(keys, args)
  local clock, run = clock_of(args, 1)
  return run .. ':' .. text(since_of(keys[1], clock, run))
end

-- KEYS: store. What is not here was never set.
local function confirm(keys, args)
  local _, run = clock_of(args, 1)
  redis.call('HSET', keys[1], 'life', run, 'since', '0')
  return 'OK'
end

redis.register_function('quotient_fleet_6_ask', ask)
redis.register_function('quotient_fleet_6_set', set)
redis.register_function('quotient_fleet_6_memory', memory)
redis.register_function('quotient_fleet_6_confirm', confirm)
redis.register_function { function_name = 'quotient_fleet_6_get', callback = get, flags = { 'no-writes' } }
