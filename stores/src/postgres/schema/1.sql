-- Format 1. A process calls only functions, whose names end with the format in which they were added, so processes of
-- an earlier version go on after a later file has changed the tables. {schema} is replaced.

CREATE TABLE {schema}.format (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    version integer NOT NULL
);
INSERT INTO {schema}.format (version) VALUES (1);

CREATE SEQUENCE {schema}.revision;

-- The parts of an entry have the positions from `oldest` to `next` - 1, without gaps, so a part that is missing is
-- noticed. Those before `first` are hidden, by the append of the revision `whole`. A `crc` is the checksum of the text
-- or the bytes beside it. The head is a text, because jsonb refuses \u0000. While `until` is not over, only `holder` may
-- change the entry. `due` is then the end of the lease, but an append sets it only once a third of the lease is over,
-- because its index has to be changed with it. `posts` counts the posts that wait. A post may set `status` and `queue`, so
-- the columns count, and not the head.
CREATE TABLE {schema}.entry (
    number bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    id text COLLATE "C" NOT NULL UNIQUE,
    revision bigint NOT NULL DEFAULT 0,
    last_append bytea NOT NULL DEFAULT '',
    status text COLLATE "C" NOT NULL DEFAULT '',
    head text NOT NULL DEFAULT '',
    crc bigint NOT NULL DEFAULT 0,
    oldest bigint NOT NULL DEFAULT 0,
    first bigint NOT NULL DEFAULT 0,
    next bigint NOT NULL DEFAULT 0,
    whole bigint NOT NULL DEFAULT 0,
    holder text,
    until timestamptz,
    queue text COLLATE "C",
    due timestamptz,
    attempts bigint NOT NULL DEFAULT 0,
    posts bigint NOT NULL DEFAULT 0
);
CREATE INDEX entry_by_status ON {schema}.entry (status, id);
CREATE INDEX entry_by_due ON {schema}.entry (queue, due) WHERE queue IS NOT NULL AND due IS NOT NULL;

CREATE TABLE {schema}.worker (
    name text PRIMARY KEY,
    queues text[] NOT NULL,
    until timestamptz NOT NULL
);

CREATE TABLE {schema}.part (
    entry bigint NOT NULL,
    position bigint NOT NULL,
    bytes bytea NOT NULL,
    crc bigint NOT NULL,
    PRIMARY KEY (entry, position)
);

-- The posts of an entry, in the order of their numbers, which are given while the entry's row is locked. A post that was
-- taken has no body, and its row stays, so that the post is known when it is repeated.
CREATE TABLE {schema}.post (
    number bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    entry bigint NOT NULL,
    id bytea NOT NULL,
    key text COLLATE "C",
    body bytea,
    crc bigint NOT NULL,
    UNIQUE (entry, id),
    UNIQUE (entry, key)
);
CREATE INDEX post_waiting ON {schema}.post (entry, number) WHERE body IS NOT NULL;

CREATE TABLE {schema}.value (
    key bytea PRIMARY KEY,
    json text NOT NULL,
    crc bigint NOT NULL
);

-- A change that was acknowledged is on the disk, also if the database or the role does not wait for it. An attribute of
-- the function would end before the commit.
CREATE FUNCTION {schema}.wait_for_disk_1() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- Returns the new revision; or, if the append is refused, the entry's revision and false, and the process that holds it.
CREATE FUNCTION {schema}.append_1(
    of_id text, after bigint, append_id bytea, new_status text, new_head text, head_crc bigint,
    replaces boolean, hides boolean, parts bytea[], crcs bigint[],
    author text, lease double precision, new_queue text, due_in double precision, new_attempts bigint, takes bytea[]
) RETURNS TABLE (at bigint, is_made boolean, held_by text, held_until timestamptz) LANGUAGE plpgsql AS $$
DECLARE
    changed record;
    last bytea;
    now_at timestamptz;
    lease_ends timestamptz;
    taken bigint := 0;
    leaves boolean;
BEGIN
    PERFORM {schema}.wait_for_disk_1();
    LOOP
        now_at := clock_timestamp();
        lease_ends := now_at + make_interval(secs => lease);
        -- A row that is inserted here has the revision 0 until the statement below, which no other transaction sees.
        IF after = 0 THEN
            INSERT INTO {schema}.entry (id) VALUES (of_id) ON CONFLICT (id) DO NOTHING;
        END IF;
        -- The revision comes after the insert: an entry of this id that was removed meanwhile had a smaller one.
        at := nextval('{schema}.revision');
        UPDATE {schema}.entry AS e SET
            revision = at, last_append = append_id, status = new_status, head = new_head, crc = head_crc,
            oldest = CASE
                WHEN replaces AND hides THEN e.first
                WHEN replaces THEN e.next
                ELSE e.oldest
            END,
            first = CASE WHEN replaces OR hides THEN e.next ELSE e.first END,
            next = e.next + cardinality(parts),
            whole = CASE WHEN replaces OR hides OR after = 0 THEN at ELSE e.whole END,
            holder = CASE WHEN lease IS NULL THEN NULL ELSE author END, until = lease_ends,
            queue = coalesce(new_queue, e.queue), attempts = new_attempts,
            due = CASE
                WHEN lease IS NULL THEN now_at + make_interval(secs => due_in)
                WHEN e.holder = author AND e.due > now_at + make_interval(secs => lease * 2 / 3) AND e.due <= lease_ends
                    THEN e.due
                ELSE lease_ends
            END
        WHERE e.id = of_id AND e.revision = after AND (e.holder IS NULL OR e.holder = author OR e.until <= now_at)
        RETURNING e.number, e.oldest, e.next, e.posts INTO changed;
        IF FOUND THEN
            IF replaces THEN
                DELETE FROM {schema}.part AS p WHERE p.entry = changed.number AND p.position < changed.oldest;
            END IF;
            INSERT INTO {schema}.part (entry, position, bytes, crc)
                SELECT changed.number, changed.next - cardinality(parts) + n - 1, p.bytes, p.crc
                FROM unnest(parts, crcs) WITH ORDINALITY AS p (bytes, crc, n);
            IF cardinality(takes) > 0 THEN
                UPDATE {schema}.post AS p SET body = NULL
                    WHERE p.entry = changed.number AND p.id = ANY (takes) AND p.body IS NOT NULL;
                GET DIAGNOSTICS taken = ROW_COUNT;
            END IF;
            -- A release that leaves posts: its author does not learn the newer revision, and a worker goes on.
            leaves := lease IS NULL AND changed.posts > taken;
            IF taken > 0 OR leaves THEN
                UPDATE {schema}.entry AS e SET
                    posts = e.posts - taken,
                    revision = CASE WHEN leaves THEN nextval('{schema}.revision') ELSE e.revision END,
                    due = CASE WHEN leaves AND e.queue IS NOT NULL THEN now_at ELSE e.due END
                WHERE e.number = changed.number;
            END IF;
            is_made := true;
            RETURN NEXT;
            RETURN;
        END IF;
        -- An append that is repeated has the id of the last one.
        SELECT c.revision, c.last_append, c.holder, c.until INTO at, last, held_by, held_until
            FROM {schema}.entry AS c WHERE c.id = of_id;
        IF NOT FOUND THEN
            -- An entry that was in the way, and is removed now, is no conflict.
            CONTINUE WHEN after = 0;
            at := 0;
        END IF;
        -- A lease that is repeated is none if a worker has taken the entry since.
        is_made := coalesce(last = append_id AND (lease IS NULL OR held_by = author), false);
        IF held_by = author OR coalesce(held_until <= clock_timestamp(), true) THEN
            held_by := NULL;
            -- The lease has just ended.
            CONTINUE WHEN at = after AND after <> 0 AND NOT is_made;
        END IF;
        RETURN NEXT;
        RETURN;
    END LOOP;
END
$$;

-- Adds a post, and returns `kept`; or why it is refused: `missing`, `queue`, `key` with the first post, or `full`. The
-- entry's row is changed also while the entry is held: a release that runs at the same time then sees the post, or fails
-- and is repeated. Under `repeatable read`, a release goes on after a row that was only locked, and misses the post.
CREATE FUNCTION {schema}.post_1(
    of_id text, post_id bytea, post_key text, post_queue text, post_body bytea, post_crc bigint, most bigint
) RETURNS TABLE (outcome text, entry_queue text, first_id bytea, first_body bytea, first_crc bigint)
LANGUAGE plpgsql AS $$
DECLARE
    stored record;
    now_at timestamptz;
    is_held boolean;
    has_work boolean;
BEGIN
    PERFORM {schema}.wait_for_disk_1();
    SELECT e.number, e.queue, e.posts, e.until INTO stored FROM {schema}.entry AS e WHERE e.id = of_id FOR UPDATE;
    IF NOT FOUND THEN
        outcome := 'missing';
        RETURN NEXT;
        RETURN;
    END IF;
    entry_queue := stored.queue;
    -- The statements below see the posts of those that had the lock before.
    IF EXISTS (SELECT 1 FROM {schema}.post AS p WHERE p.entry = stored.number AND p.id = post_id) THEN
        outcome := 'kept';
        RETURN NEXT;
        RETURN;
    END IF;
    IF stored.queue <> post_queue THEN
        outcome := 'queue';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT p.id, p.body, p.crc INTO first_id, first_body, first_crc
        FROM {schema}.post AS p WHERE p.entry = stored.number AND p.key = post_key;
    IF FOUND THEN
        outcome := 'key';
        RETURN NEXT;
        RETURN;
    END IF;
    IF stored.posts >= most THEN
        outcome := 'full';
        RETURN NEXT;
        RETURN;
    END IF;
    now_at := clock_timestamp();
    is_held := coalesce(stored.until > now_at, false);
    has_work := NOT is_held AND coalesce(stored.queue, post_queue) IS NOT NULL;
    INSERT INTO {schema}.post (entry, id, key, body, crc)
        VALUES (stored.number, post_id, post_key, post_body, post_crc);
    UPDATE {schema}.entry AS e SET
        posts = e.posts + 1, queue = coalesce(e.queue, post_queue),
        revision = CASE WHEN is_held THEN e.revision ELSE nextval('{schema}.revision') END,
        -- Many posts do not move an entry behind others that are due.
        due = CASE WHEN has_work THEN least(e.due, now_at) ELSE e.due END,
        status = CASE
            WHEN has_work AND post_queue IS NOT NULL AND e.status IN ('ended', 'failed', 'paused') THEN 'queued'
            ELSE e.status
        END
    WHERE e.number = stored.number;
    outcome := 'kept';
    RETURN NEXT;
END
$$;

-- Returns a row for each post that waits, with their number; or one without a post; or none if there is no entry.
CREATE FUNCTION {schema}.posts_1(of_id text) RETURNS TABLE (
    posts bigint, id bytea, key text, body bytea, crc bigint
) LANGUAGE sql STABLE AS $$
    SELECT e.posts, p.id, p.key, p.body, p.crc
    FROM {schema}.entry AS e LEFT JOIN {schema}.post AS p ON p.entry = e.number AND p.body IS NOT NULL
    WHERE e.id = of_id ORDER BY p.number
$$;

-- Returns the row of the head, and then a row for each part.
CREATE FUNCTION {schema}.load_1(of_id text) RETURNS TABLE (
    revision bigint, head text, first bigint, next bigint, "position" bigint, bytes bytea, crc bigint,
    held_by text, held_until timestamptz, attempts bigint, status text, queue text, posts bigint
) LANGUAGE sql STABLE AS $$
    SELECT e.revision, e.head, e.first, e.next, NULL::bigint, NULL::bytea, e.crc,
        CASE WHEN e.until > clock_timestamp() THEN e.holder END, e.until, e.attempts, e.status, e.queue, e.posts
    FROM {schema}.entry AS e WHERE e.id = of_id
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, p.position, p.bytes, p.crc, NULL, NULL, NULL, NULL, NULL, NULL
    FROM {schema}.entry AS e JOIN {schema}.part AS p ON p.entry = e.number AND p.position >= e.first
    WHERE e.id = of_id
    ORDER BY 5 NULLS FIRST
$$;

-- Returns a row of the entry, and then a row for each hidden part, if no append after `before` has changed them.
CREATE FUNCTION {schema}.older_parts_1(of_id text, before bigint) RETURNS TABLE (
    revision bigint, whole bigint, oldest bigint, first bigint, "position" bigint, bytes bytea, crc bigint
) LANGUAGE sql STABLE AS $$
    SELECT e.revision, e.whole, e.oldest, e.first, NULL::bigint, NULL::bytea, NULL::bigint
    FROM {schema}.entry AS e WHERE e.id = of_id
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, p.position, p.bytes, p.crc
    FROM {schema}.entry AS e JOIN {schema}.part AS p ON p.entry = e.number AND p.position < e.first
    WHERE e.id = of_id AND e.whole <= before
    ORDER BY 5 NULLS FIRST
$$;

-- Reads at most `most` heads of each status, by its index, of which the first are kept.
CREATE FUNCTION {schema}.list_1(statuses text[], after text, most bigint) RETURNS TABLE (
    id text, revision bigint, head text, crc bigint, held_by text, held_until timestamptz, attempts bigint, status text,
    queue text, posts bigint
) LANGUAGE sql STABLE AS $$
    SELECT e.id, e.revision, e.head, e.crc,
        CASE WHEN e.until > clock_timestamp() THEN e.holder END, e.until, e.attempts, e.status, e.queue, e.posts
    FROM unnest(statuses) AS s (status) CROSS JOIN LATERAL (
        SELECT * FROM {schema}.entry AS o WHERE o.status = s.status AND o.id > after ORDER BY o.id LIMIT most
    ) AS e
    ORDER BY e.id LIMIT most
$$;

-- Lists a worker for the time of a lease, or no longer if it is 0, and lets it hold what is due in its queues. It skips
-- rows that are locked, so workers do not wait for each other. The rows are read one by one: a join would read all that
-- is due, because the planner does not know the limit.
CREATE FUNCTION {schema}.take_1(author text, lease double precision, queues text[], most bigint) RETURNS TABLE (
    id text, revision bigint, head text, crc bigint, held_by text, held_until timestamptz, attempts bigint, status text,
    queue text, posts bigint
) LANGUAGE plpgsql AS $$
DECLARE
    now_at timestamptz := clock_timestamp();
    lease_ends timestamptz := now_at + make_interval(secs => lease);
    of_queue text;
    due_number bigint;
    taken bigint := 0;
BEGIN
    PERFORM {schema}.wait_for_disk_1();
    IF lease > 0 THEN
        INSERT INTO {schema}.worker AS w (name, queues, until) VALUES (author, take_1.queues, lease_ends)
            ON CONFLICT (name) DO UPDATE SET queues = excluded.queues, until = excluded.until
            WHERE w.until < now_at + make_interval(secs => lease * 2 / 3) OR w.queues <> excluded.queues;
    ELSE
        DELETE FROM {schema}.worker AS w WHERE w.name = author OR w.until <= now_at;
    END IF;
    FOREACH of_queue IN ARRAY take_1.queues LOOP
        FOR due_number IN
            SELECT e.number FROM {schema}.entry AS e
            WHERE e.queue = of_queue AND e.due <= now_at AND (e.until IS NULL OR e.until <= now_at)
            ORDER BY e.due LIMIT most - taken FOR UPDATE SKIP LOCKED
        LOOP
            UPDATE {schema}.entry AS e SET
                revision = nextval('{schema}.revision'), holder = author, until = lease_ends, due = lease_ends,
                attempts = e.attempts + 1
            WHERE e.number = due_number
            RETURNING e.id, e.revision, e.head, e.crc, e.holder, e.until, e.attempts, e.status, e.queue, e.posts
            INTO id, revision, head, crc, held_by, held_until, attempts, status, queue, posts;
            taken := taken + 1;
            RETURN NEXT;
        END LOOP;
    END LOOP;
END
$$;

CREATE FUNCTION {schema}.workers_1() RETURNS TABLE (
    name text, queues text[], until timestamptz
) LANGUAGE sql STABLE AS $$
    SELECT w.name, w.queues, w.until FROM {schema}.worker AS w WHERE w.until > clock_timestamp() ORDER BY w.name
$$;

-- Returns the entry's revision if the removal is refused, and otherwise null.
CREATE FUNCTION {schema}.remove_1(of_id text, after bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    removed bigint;
    at bigint;
BEGIN
    PERFORM {schema}.wait_for_disk_1();
    DELETE FROM {schema}.entry AS e WHERE e.id = of_id AND e.revision = after RETURNING e.number INTO removed;
    IF FOUND THEN
        DELETE FROM {schema}.part AS p WHERE p.entry = removed;
        DELETE FROM {schema}.post AS p WHERE p.entry = removed;
        RETURN NULL;
    END IF;
    SELECT e.revision INTO at FROM {schema}.entry AS e WHERE e.id = of_id;
    RETURN at;
END
$$;

CREATE FUNCTION {schema}.read_value_1(of_key bytea) RETURNS TABLE (json text, crc bigint) LANGUAGE sql STABLE AS $$
    SELECT v.json, v.crc FROM {schema}.value AS v WHERE v.key = of_key
$$;

CREATE FUNCTION {schema}.write_value_1(of_key bytea, new_json text, new_crc bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.wait_for_disk_1();
    INSERT INTO {schema}.value (key, json, crc) VALUES (of_key, new_json, new_crc)
        ON CONFLICT (key) DO UPDATE SET json = excluded.json, crc = excluded.crc;
END
$$;

CREATE FUNCTION {schema}.remove_value_1(of_key bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.wait_for_disk_1();
    DELETE FROM {schema}.value AS v WHERE v.key = of_key;
END
$$;

CREATE FUNCTION {schema}.value_keys_1(beginning bytea, ending bytea) RETURNS SETOF bytea LANGUAGE sql STABLE AS $$
    SELECT v.key FROM {schema}.value AS v WHERE v.key >= beginning AND v.key < ending ORDER BY v.key
$$;
