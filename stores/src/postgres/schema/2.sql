-- Format 2: listeners hear of each post to an entry that is held, and of each entry of a queue that becomes due. The
-- channel has the name of the schema. Processes of format 1 notify, too.

CREATE FUNCTION {schema}.notify_2() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.until > clock_timestamp() THEN
        PERFORM pg_notify(TG_TABLE_SCHEMA, 'post ' || NEW.id);
    ELSE
        PERFORM pg_notify(TG_TABLE_SCHEMA, 'due ' || NEW.queue);
    END IF;
    RETURN NULL;
END
$$;

-- An append of a holder, and a take, notify nobody: commits with a notification wait for each other.
CREATE TRIGGER notify_2 AFTER UPDATE ON {schema}.entry FOR EACH ROW WHEN (
    CASE
        WHEN NEW.until > clock_timestamp() THEN NEW.posts > OLD.posts
        ELSE NEW.queue IS NOT NULL AND NEW.due <= clock_timestamp()
            AND (OLD.due IS DISTINCT FROM NEW.due OR OLD.queue IS NULL)
    END
) EXECUTE FUNCTION {schema}.notify_2();

UPDATE {schema}.format SET version = 2;
